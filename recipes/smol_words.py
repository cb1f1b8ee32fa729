"""Words and templates of the instructions that the original model of `smol` answers; no code draws here."""

# ruff: noqa: E501  word lists and templates are laid out as prose

from __future__ import annotations


def split(text: str) -> list[str]:
    """Return the items of a list separated by commas."""
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
    """Return the items of a list separated by bars."""
    return [item.strip() for item in text.replace("\n", "").split("|") if item.strip()]


TEMPLATES = {
    "open": lines(OPEN), "sentence": lines(SENTENCE_TASKS), "opinion": lines(OPINION_TASKS), "sum": lines(SUMS),
}  # fmt: skip
