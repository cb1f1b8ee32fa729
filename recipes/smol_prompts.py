"""Instructions of our own for distilling `smol`: templates, fillers, and checkable wishes about the form.

An instruction is a task (a template with its slots filled) and, for some, a wish about the form of the answer
("in at most 40 words"). A wish carries a check, so that answers which ignore it can be left out. Everything
is a pure function of the generator that is passed in. No text of any benchmark is used.

    python recipes/smol_prompts.py 20        prints 20 examples
"""

# ruff: noqa: E501  word lists and templates are laid out as prose

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Check = Callable[[str], bool]


@dataclass(frozen=True)
class Instruction:
    """What the user says, and whether an answer has the form that was asked for."""

    text: str
    check: Check | None = None


# ---- fillers ---------------------------------------------------------------------------------------------


def split(text: str) -> list[str]:
    return [item.strip() for item in text.replace("\n", " ").split(",") if item.strip()]


FILLERS = {
    "topic": split("""
        gravity, photosynthesis, the water cycle, inflation, democracy, the Roman Empire, black holes, DNA, the moon,
        volcanoes, recycling, the internet, vaccines, electricity, friendship, honesty, the human heart, the brain,
        bees, dolphins, wolves, whales, elephants, penguins, rain forests, deserts, glaciers, rivers, earthquakes,
        the printing press, the steam engine, bicycles, trains, airplanes, sailing ships, bridges, castles, pyramids,
        jazz, opera, painting, photography, poetry, novels, theatre, chess, football, tennis, swimming, running, yoga,
        sleep, healthy eating, vitamins, stress, teamwork, leadership, time management, saving money, taxes, trade,
        farming, gardening, cooking, bread, coffee, tea, chocolate, cheese, spices, the Middle Ages, the Renaissance,
        the Industrial Revolution, space travel, satellites, telescopes, microscopes, magnets, sound, light, rainbows,
        clouds, snow, thunderstorms, the seasons, tides, coral reefs, evolution, fossils, dinosaurs, bacteria, viruses,
        antibiotics, machine learning, computers, programming, encryption, search engines, video games, libraries,
        museums, schools, hospitals, cities, public transport, climate change, solar power, wind energy, batteries"""),
    "noun": split("""
        apple, river, teacher, mountain, computer, garden, window, bridge, doctor, letter, bottle, kitchen, guitar,
        camera, forest, island, market, ticket, planet, engine, basket, candle, blanket, hammer, lantern, mirror,
        pencil, pocket, saddle, umbrella, wallet, whistle, anchor, barn, clock, drum, feather, glove, harbour, ladder"""),
    "adjective": split("""
        happy, brave, quiet, ancient, bright, careful, clever, cold, curious, difficult, early, famous, fast, friendly,
        gentle, heavy, honest, hungry, large, lazy, lucky, modern, narrow, noisy, patient, polite, proud, rare, rough,
        sharp, simple, slow, strong, tired, warm, weak, wise, young"""),
    "verb": split("""
        run, write, build, sing, teach, learn, carry, throw, choose, drive, break, forgive, grow, hide, keep, lose,
        paint, read, sell, swim, travel, understand, wake, wear, win"""),
    "task": split("""
        learn to play the guitar, bake a loaf of bread, improve my handwriting, sleep better, study for an exam,
        write a cover letter, start a small garden, clean a kitchen, save money on groceries, plan a weekend trip,
        train a puppy, learn a new language, fix a flat bicycle tyre, prepare for a job interview, make new friends,
        give a short speech, remember names, reduce food waste, pack a suitcase, write a poem, read more books,
        take better photos, cook rice, make a budget, stay focused at work, wake up early, drink more water,
        organise a desk, choose a gift, run a mile, calm down before a test, paint a wall, plant a tree"""),
    "role": split("""
        a doctor, a teacher, a farmer, a sailor, a librarian, a chef, a pilot, a detective, a painter, a scientist,
        a grandmother, a student, a shopkeeper, a gardener, a musician, a robot, a dragon, a king, a nurse, a baker"""),
    "name": split("Anna, Ben, Carla, David, Emma, Felix, Grace, Henry, Ines, Jonas, Kate, Liam, Maya, Noah, Olga, Paul"),
    "place": split("""
        Paris, London, Tokyo, Cairo, Nairobi, Lima, Sydney, Toronto, Berlin, Madrid, Rome, Oslo, Dublin, Delhi, Seoul,
        Istanbul, Chicago, Boston, Lisbon, Vienna, Athens, Prague, Mexico City, Buenos Aires, Bangkok"""),
    "country": split("""
        France, Spain, Italy, Germany, Japan, China, India, Brazil, Canada, Mexico, Egypt, Kenya, Norway, Sweden,
        Greece, Turkey, Poland, Portugal, Ireland, Australia, Argentina, Peru, Chile, Thailand, Vietnam, Austria"""),
    "things": split("""
        animals that live in the sea, birds, fruits, vegetables, musical instruments, sports, countries in Europe,
        countries in Africa, countries in Asia, planets, colours, tools in a kitchen, things to pack for a trip,
        hobbies, healthy snacks, ways to save energy, ways to say hello, reasons to read books, kinds of weather,
        famous rivers, jobs, board games, desserts, trees, flowers, insects, materials, holidays, school subjects,
        parts of a car, parts of a plant, good habits, breakfast dishes, safety rules, ideas for a birthday party"""),
    "form": split("""
        poem, story, paragraph, letter, email, speech, diary entry, product description, advertisement, news report,
        blog post, review, fable, joke, riddle, song verse, invitation, thank-you note, recipe, summary, dialogue,
        slogan, description, limerick, fairy tale, travel tip, birthday message, complaint, introduction"""),
    "pair": split("""
        a cat and a dog, tea and coffee, a lake and a river, weather and climate, a planet and a star, rice and pasta,
        a novel and a poem, speed and velocity, a virus and a bacterium, a frog and a toad, a city and a village,
        copper and iron, a violin and a cello, summer and winter, a lawyer and a judge, butter and margarine,
        a comet and an asteroid, a moth and a butterfly, rent and a mortgage, a simile and a metaphor"""),
    "food": split("""
        pancakes, tomato soup, fried rice, an omelette, a fruit salad, pizza, lentil stew, chicken curry, banana bread,
        mashed potatoes, a cheese sandwich, vegetable pasta, tacos, porridge, lemonade, apple pie, a smoothie"""),
    "emotion": split("joy, sadness, anger, fear, surprise, pride, hope, boredom, jealousy, gratitude, loneliness, relief"),
    "era": split("the 1800s, the Middle Ages, ancient Greece, ancient Egypt, the 1950s, the Stone Age, the year 2100"),
    "audience": split("a child, a beginner, a student, a ten-year-old, an expert, a friend, a tourist, a parent, a class"),
    "style": split("formal, friendly, funny, serious, simple, poetic, persuasive, polite, cheerful, dramatic"),
    "person": split("""
        Albert Einstein, Marie Curie, Leonardo da Vinci, William Shakespeare, Isaac Newton, Cleopatra, Mozart,
        Nelson Mandela, Charles Darwin, Ada Lovelace, Galileo, Jane Austen, Gandhi, Aristotle, Florence Nightingale"""),
}  # fmt: skip

SUBJECTS = split("""
    the old man, my sister, a young artist, the teacher, our neighbour, the captain, a small boy, the scientist,
    the two friends, the manager, a tall woman, the whole team, the shopkeeper, a tired traveller, the children""")
ACTIONS = split("""
    walked along the river, opened a small bakery, forgot the keys at home, found a letter in the attic,
    won the first prize, missed the last train, planted three apple trees, repaired the broken radio,
    painted the kitchen yellow, wrote a long letter, bought a second-hand car, told a strange story,
    waited for the rain to stop, carried the boxes upstairs, cooked dinner for ten people, lost the map""")
TAILS = split("""
    on a cold morning, before the sun came up, because of the storm, after a long day, without saying a word,
    in the middle of the night, during the holidays, for the first time, with great care, near the station""")
OPINIONS = [
    "The food was cold and the waiter ignored us.", "I loved every minute of this film.",
    "The room was clean but very noisy.", "This phone stopped working after two days.",
    "What a wonderful concert!", "The delivery was late again.", "The staff were kind and helpful.",
    "I would not buy this book again.", "The hike was tiring yet beautiful.", "Best pizza I have had in years.",
]  # fmt: skip
KINDS = {
    "fruit": split("apple, banana, cherry, grape, mango, pear, plum"),
    "animal": split("horse, tiger, rabbit, eagle, shark, goat, snake"),
    "tool": split("hammer, saw, drill, wrench, chisel, shovel"),
    "vehicle": split("truck, bicycle, tram, ferry, scooter, helicopter"),
    "colour": split("red, green, purple, orange, brown, turquoise"),
    "metal": split("iron, copper, gold, silver, tin, zinc"),
    "musical instrument": split("violin, trumpet, piano, flute, cello, drum"),
}


# ---- templates -------------------------------------------------------------------------------------------

OPEN = """
What is {topic}?|What do you know about {topic}?|Explain {topic}.|Explain {topic} to {audience}.|
Tell me about {topic}.|Tell me something interesting about {topic}.|Why is {topic} important?|
Give a short introduction to {topic}.|Describe {topic}.|Describe {topic} in simple words.|
What are the main facts about {topic}?|Write a {form} about {topic}.|Write a short {form} about {topic}.|
Write a {style} {form} about {topic}.|Write a {form} for {audience} about {topic}.|
Compose a {form} that mentions {topic} and {noun}.|Create a {form} about {role} and {topic}.|
How does {topic} affect our lives?|What should {audience} know about {topic}?|Give me an overview of {topic}.|
What are the advantages of {topic}?|What are the disadvantages of {topic}?|Name some problems related to {topic}.|
Write three questions about {topic}.|Give three facts about {topic}.|Make a quiz question about {topic}.|
What is a common misunderstanding about {topic}?|How would you teach {topic} to {audience}?|
Summarise what people should know about {topic}.|What is the history of {topic}?|
How do I {task}?|What is the best way to {task}?|Give me tips to {task}.|I want to {task}. Where should I start?|
Help me {task}.|What do I need to {task}?|List the steps to {task}.|How long does it take to {task}?|
Give one piece of advice to someone who wants to {task}.|Why is it hard to {task}?|
What mistakes should I avoid when I {task}?|Make a plan to {task} in one week.|Motivate me to {task}.|
Who was {person}?|What is {person} known for?|Write a short biography of {person}.|
Imagine a conversation with {person} about {topic}.|Why do people still talk about {person}?|
Name one achievement of {person}.|What could we learn from {person}?|
What is the difference between {pair}?|Compare {pair}.|How are {pair} alike?|Explain the difference between {pair} to {audience}.|
Which is better, and why: {pair}?|Describe {pair} in one paragraph.|
Tell me about {country}.|What is the capital of {country}?|What language do people speak in {country}?|
What should I see in {place}?|Plan a day in {place}.|Write a postcard from {place}.|What is {place} famous for?|
What food is typical of {country}?|Write a {form} set in {place}.|Describe the weather in {place}.|
Give me three reasons to visit {country}.|Where is {country}?|Is {place} in {country}?|
How do I make {food}?|Give me a recipe for {food}.|What ingredients do I need for {food}?|Describe the taste of {food}.|
What goes well with {food}?|Is {food} healthy?|Write a menu that includes {food}.|
List {n} {things}.|Name {n} {things}.|Give me {n} examples of {things}.|Can you think of {n} {things}?|
Write down {n} {things}.|What are some {things}?|I need a list of {n} {things}.|
Write a story about {role} who finds a {noun}.|Write a story about {role} and {role} in {place}.|
Tell a story that begins with a {adjective} {noun}.|Write a dialogue between {role} and {role}.|
Write a dialogue between {role} and {role} about {topic}.|Write a letter from {role} to {role}.|
Pretend that you are {role}. Describe your day.|Pretend that you are {role} and explain {topic}.|
What would {role} say about {topic}?|Describe a day in the life of {role}.|What does {role} do?|
Write a story set in {era}.|What was life like in {era}?|How did people travel in {era}?|
Describe a {adjective} {noun}.|Use the words "{noun}" and "{adjective}" in a sentence.|
Write a sentence with the word "{noun}".|Write a sentence with the word "{verb}".|What does the word "{adjective}" mean?|
Give a synonym of "{adjective}".|Give the opposite of "{adjective}".|What is the past tense of "{verb}"?|
What rhymes with "{noun}"?|Define the word "{noun}".|Is "{noun}" a noun or a verb?|What is the plural of "{noun}"?|
Give three adjectives that describe a {noun}.|Write a riddle whose answer is "{noun}".|
Invent a new use for a {noun}.|How is a {noun} made?|What can you do with a {noun}?|
Write a slogan for a shop that sells {noun}s.|Give a name to a company that makes {noun}s.|
Write a product description of a {adjective} {noun}.|Write an email to ask about a lost {noun}.|
Write a complaint about a {noun} that does not work.|Write a thank-you note for a {noun}.|
How can I deal with {emotion}?|Describe {emotion} without naming it.|When do people feel {emotion}?|
Write a poem about {emotion}.|What helps against {emotion}?|Explain {emotion} to {audience}.|
Write a birthday message for {name}.|Write an email to {name} to move a meeting to Friday.|
Write a short note to {name} about {topic}.|My friend {name} wants to {task}. What should I say?|
Introduce {name}, {role}, to a class.|Invite {name} to a dinner with {food}.|Write an apology to {name}.|
{name} is afraid of {topic}. What can {name} do?|Suggest a present for {name}, who likes {topic}.|
Give me a title for a book about {topic}.|Suggest three titles for an article about {topic}.|
Write the first sentence of a novel about {role}.|Write the last line of a story about {topic}.|
Write a headline about {topic}.|Write a question that {audience} might ask about {topic}.|
Debate: is {topic} good for society?|Give one argument for and one against {topic}.|
What will {topic} look like in the future?|Imagine a world without {topic}.|What if {role} ruled {country}?|
Make up a holiday that celebrates {topic}.|Invent a game with a {noun}.|Explain a rule of your choice about {topic}.|
Write a haiku about {topic}.|Write two lines that rhyme about {topic}.|Write an acrostic for "{noun}".|
Which season is best for {topic}?|Give me a fun fact about {country}.|Give me a fun fact about {topic}.|
Hello!|Hi there, how are you?|Good morning!|Who are you?|What can you do?|What is your name?|Thank you for your help!|
Tell me a joke.|Tell me a joke about {role}.|I am bored. What should I do?|I feel sad today.|I had a great day today!|
Can you help me?|Are you a human?|Goodbye!|What should I eat tonight?|Recommend a hobby.|Cheer me up.|Say something nice.
"""
SENTENCE_TASKS = """
Rewrite this sentence in the present tense: {sentence}|Rewrite this sentence as a question: {sentence}|
Make this sentence more {style}: {sentence}|Say this in other words: {sentence}|Shorten this sentence: {sentence}|
Continue this story: {sentence}|What might happen next? {sentence}|What happened before this? {sentence}|
Who is this sentence about? {sentence}|Turn this sentence into a short story: {sentence}|
Find the verb in this sentence: {sentence}|Find the nouns in this sentence: {sentence}|
Add an adjective to this sentence: {sentence}|Write a reply to this message: {sentence}|
Rewrite the sentence in capital letters: {sentence}|Repeat this sentence: {sentence}|
Summarise the text in one sentence: {sentence} {sentence} {sentence}|
Give the text a title: {sentence} {sentence}|Read the text and ask one question about it: {sentence} {sentence}|
Where does this take place? {sentence}|Put this into a letter to a friend: {sentence}|
Write the next two sentences: {sentence}|Explain why this could happen: {sentence}
"""
OPINION_TASKS = """
Is this review positive or negative? {opinion}|What does the writer feel? {opinion}|Answer this customer: {opinion}|
Rewrite this review so that it is more polite: {opinion}|Summarise this review in three words: {opinion}|
Classify the sentiment of this text: {opinion}|Say the opposite of this: {opinion}
"""
SUMS = """
What is {a} plus {b}?|What is {a} + {b}?|Add {a} and {b}.|What is {c} minus {a}?|What is {d} times {e}?|
{name} has {a} apples and buys {b} more. How many apples does {name} have now?|
{name} had {c} coins and gave away {a}. How many are left?|
A box holds {d} eggs. How many eggs are in {e} boxes?|Which number is larger, {a} or {b}?|Is {a} even or odd?|
Count from {d} to {f}.|There are {a} boys and {b} girls in a school. How many children are there?|
A ticket costs {d} dollars. What do {e} tickets cost?|Half of {g} is what?|What is double {a}?
"""
OPENERS = ["", "", "", "", "Please answer: ", "Question: ", "Hi! ", "I have a question. ", "Quick question: "]
CLOSERS = ["", "", "", "", "", " Thanks!", " Keep it short.", " Please be brief.", " Answer in one sentence."]


def lines(text: str) -> list[str]:
    return [item.strip() for item in text.replace("\n", "").split("|") if item.strip()]


TEMPLATES = {
    "open": lines(OPEN), "sentence": lines(SENTENCE_TASKS), "opinion": lines(OPINION_TASKS), "sum": lines(SUMS),
}  # fmt: skip


def pick(items: Sequence[str], rng: np.random.Generator) -> str:
    """Draw one item (far quicker than ``rng.choice``, which makes an array of them all)."""
    return items[int(rng.integers(len(items)))]


def fill(template: str, rng: np.random.Generator) -> str:
    """Fill every slot with a filler of its own."""

    def one(match: re.Match[str]) -> str:
        slot = match[1]
        if slot == "sentence":
            parts = [pick(part, rng) for part in (SUBJECTS, ACTIONS, TAILS)]
            return " ".join(parts).capitalize() + "."
        if slot == "opinion":
            return pick(OPINIONS, rng)
        if slot in NUMBERS:
            return str(rng.integers(*NUMBERS[slot]))
        return pick(FILLERS[slot], rng)

    return re.sub(r"\{(\w+)\}", one, template)


NUMBERS = {
    "n": (2, 9),
    "a": (2, 60),
    "b": (2, 60),
    "c": (60, 120),
    "d": (2, 10),
    "e": (2, 10),
    "f": (11, 20),
    "g": (4, 50),
}


IMPERATIVES = split("""
    Write, Give, Tell, Explain, Describe, List, Name, Compose, Create, Make, Plan, Help, Suggest, Invent, Imagine, Compare,
    Summarise, Rewrite, Shorten, Continue, Find, Add, Repeat, Say, Turn, Put, Answer, Classify, Count, Recommend, Introduce""")


def asked_politely(task: str, rng: np.random.Generator) -> str:
    """Turn some commands into requests: every template that starts with a verb has two more wordings."""
    verb = task.split(" ", 1)[0]
    if verb not in IMPERATIVES or rng.random() < 0.7:
        return task
    lowered = verb.lower() + task[len(verb) :]
    if rng.random() < 0.5 and task.endswith(".") and task.count(".") == 1:
        return f"{rng.choice(['Could you', 'Can you', 'Would you'])} {lowered[:-1]}?"
    return f"{rng.choice(['Please', 'I would like you to', 'I need you to', 'Your task:'])} {lowered}"


def choice_question(rng: np.random.Generator) -> str:
    """Return a question with lettered options, one of which is of the kind asked for."""
    kinds = list(rng.permutation(list(KINDS)))
    options = [pick(KINDS[kind], rng) for kind in kinds[:4]]
    order = rng.permutation(4)
    asked = rng.choice(
        [f"Which of these is a {kinds[0]}?", f"Pick the {kinds[0]}.", f"Which word names a {kinds[0]}?"]
    )
    shown = "\n".join(f"{letter}. {options[place]}" for letter, place in zip("ABCD", order, strict=True))
    ending = rng.choice(
        ["Answer with the letter.", "Give the letter and the word.", "Answer:", "Explain your choice."]
    )
    return f"{asked}\n{shown}\n{ending}"


# ---- wishes about the form -------------------------------------------------------------------------------


def words(answer: str) -> list[str]:
    return re.findall(r"\w+(?:['’-]\w+)*", answer)


def sentences(answer: str) -> int:
    return len(re.findall(r"[.!?]+(?=\s|$)", answer.strip()))


def bullets(answer: str) -> int:
    return len(re.findall(r"^\s*[*-] \S", answer, re.MULTILINE))


def is_json(answer: str) -> bool:
    text = re.sub(r"^```(?:json)?|```$", "", answer.strip()).strip()
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def wish(rng: np.random.Generator) -> tuple[str, Check]:
    """Return a wish in words and its check."""
    n = int(rng.integers(2, 6))
    few, many = int(rng.choice([20, 30, 40, 50, 60, 80])), int(rng.choice([30, 50, 80, 100]))
    word, other = (str(item) for item in rng.choice(FILLERS["noun"], 2, replace=False))
    ending = str(
        rng.choice(["That is all.", "I hope this helps.", "Any questions?", "Thank you for reading."])
    )
    start = str(rng.choice(["Of course", "Here is", "Well", "In short"]))
    table: list[tuple[list[str], Check]] = [
        (["Use only lowercase letters.", "Write everything in lowercase.", "No capital letters, please."],
         lambda text: text == text.lower()),
        (["Write in capital letters only.", "Answer in ALL CAPS.", "Use only uppercase letters."],
         lambda text: text == text.upper()),
        (["Do not use any commas.", "Avoid commas.", "Your answer must not contain a comma."], lambda text: "," not in text),
        ([f"Use at most {few} words.", f"Keep it under {few + 1} words.", f"No more than {few} words."],
         lambda text: len(words(text)) <= few),
        ([f"Use at least {many} words.", f"Write {many} words or more.", f"Your answer needs at least {many} words."],
         lambda text: len(words(text)) >= many),
        ([f"Answer in at most {n} sentences.", f"Use no more than {n} sentences."], lambda text: sentences(text) <= n),
        ([f"Write at least {n} sentences.", f"Use {n} sentences or more."], lambda text: sentences(text) >= n),
        ([f"Use exactly {n} bullet points.", f"Give exactly {n} bullet points, like * this.",
          f"Answer with {n} bullet points in markdown."], lambda text: bullets(text) == n),
        ([f"Mention the word {word}.", f"Include the word '{word}'.", f"The word \"{word}\" must appear."],
         lambda text: word in text.lower()),
        ([f"Include the words {word} and {other}.", f"Use both '{word}' and '{other}'."],
         lambda text: word in text.lower() and other in text.lower()),
        ([f"Do not use the word '{word}'.", f"Leave out the word {word}."], lambda text: word not in text.lower()),
        ([f"End with the exact words: {ending}", f"Finish your answer with \"{ending}\""],
         lambda text: text.strip().strip('"').endswith(ending)),
        ([f"Begin your answer with \"{start}\".", f"Start with the words {start}."],
         lambda text: text.strip().strip('"').startswith(start)),
        (["Put your whole answer in double quotation marks.", "Wrap the whole answer in double quotes."],
         lambda text: text.strip().startswith('"') and text.strip().endswith('"')),
        (["Give it a title in double angle brackets, like <<title>>.", "Add a title wrapped in << and >>."],
         lambda text: re.search(r"<<[^\n]+>>", text) is not None),
        (["Answer in JSON format.", "Give the entire answer as JSON."], is_json),
        (["Add a postscript that starts with P.S.", "At the end add a note starting with P.S."],
         lambda text: "P.S." in text),
        ([f"Write {n} paragraphs separated by ***.", f"There should be {n} paragraphs, divided by the markdown divider: ***"],
         lambda text: len([part for part in text.split("***") if part.strip()]) == n),
        (["Give two different answers, separated by ******.", "Give two responses with ****** between them."],
         lambda text: len([part for part in text.split("******") if part.strip()]) == 2),
        (["Highlight one word with *asterisks*.", "Highlight at least one part with markdown, like *this*."],
         lambda text: re.search(r"\*[^\s*][^*\n]*\*", text) is not None),
        (["Use at least one placeholder in square brackets, such as [name].", "Include a placeholder like [address]."],
         lambda text: re.search(r"\[[^\]\n]+\]", text) is not None),
        (["Answer with yes or no first.", "Start with 'Yes' or 'No'."],
         lambda text: text.strip().lower().startswith(("yes", "no"))),
    ]  # fmt: skip
    phrases, check = table[int(rng.integers(len(table)))]
    return pick(phrases, rng), check


# ---- instructions ----------------------------------------------------------------------------------------

SHARES = {"open": 0.62, "sentence": 0.12, "opinion": 0.05, "sum": 0.12, "choice": 0.09}


def instruction(rng: np.random.Generator) -> Instruction:
    """Draw one instruction."""
    kind = str(rng.choice(list(SHARES), p=list(SHARES.values())))
    if kind == "choice":
        return Instruction(choice_question(rng))
    task = asked_politely(fill(pick(TEMPLATES[kind], rng), rng), rng)
    if kind == "open" and rng.random() < 0.35:
        text, check = wish(rng)
        return Instruction(f"{task} {text}" if rng.random() < 0.8 else f"{text} {task}", check)
    return Instruction(pick(OPENERS, rng) + task + pick(CLOSERS, rng))


def worth_keeping(answer: str, asked: Instruction) -> bool:
    """Tell whether an answer is non-empty, has the form asked for and does not repeat itself."""
    found = words(answer)
    if not found or (asked.check is not None and not asked.check(answer)):
        return False
    runs = [tuple(found[place : place + 4]) for place in range(len(found) - 3)]
    return len(set(runs)) >= 0.7 * len(runs)


if __name__ == "__main__":
    source = np.random.default_rng(0)
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
        print("-", instruction(source).text)
    print(sum(len(group) for group in TEMPLATES.values()), "templates")
