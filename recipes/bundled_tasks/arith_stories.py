"""The written stories of `arith`, by number of steps. Data only; the engine is arith_engine.py."""

from __future__ import annotations

from bundled_tasks.arith_engine import Story
from bundled_tasks.arith_stories_long import THREE, TWO

ONE = (
    Story(
        "together",
        "x:3-30 y:3-30",
        (
            "{A} has {x} {obj}. {B} has {y} {obj}.",
            "{A} found {x} {obj} and {B} found {y} {obj}.",
            "There are {x} {obj} on the table and {y} {obj} on the shelf.",
            "One {box} holds {x} {obj} and another {box} holds {y} {obj}.",
        ),
        (
            "How many {obj} are there in all?",
            "How many {obj} is that altogether?",
            "What is the total number of {obj}?",
        ),
        (
            "We add the two groups of {obj}. {a=x+y}, so there are {a} {obj} in all.",
            "To find the total, add {x} and {y}. {a=x+y}.",
        ),
    ),
    Story(
        "gap",
        "x:8-40 y:3-30",
        (
            "{A} has {x} {obj} and {B} has {y} {obj}.",
            "{A} sold {x} {obj} last week. {B} sold {y} {obj}.",
            "{A} collected {x} {obj}, while {B} collected only {y} {obj}.",
        ),
        ("How many more {obj} is that for {A} than for {B}?", "By how many {obj} is {A} ahead of {B}?"),
        (
            "{A} has the larger number, {x}, and {B} has {y}. The difference is {a=x-y}.",
            "We subtract the smaller number from the larger one. {a=x-y}, so {A} is ahead by {a} {obj}.",
        ),
    ),
    Story(
        "rows",
        "x:2-12 y:2-12",
        (
            "{A} puts the {obj} in {x} rows with {y} {obj} in each row.",
            "There are {x} {boxes} with {y} {obj} in each {box}.",
            "{A} fills {x} {boxes}. Each {box} holds {y} {obj}.",
            "Each of {x} children brings {y} {obj} to school.",
        ),
        (
            "How many {obj} are there in total?",
            "How many {obj} are there altogether?",
            "What is the number of {obj}?",
        ),
        (
            "There are {x} groups of {y} {obj}. We multiply: {a=x*y}.",
            "{x} groups with {y} {obj} each make {a=x*y} {obj} in total.",
        ),
    ),
    Story(
        "share",
        "y:2-9 q:2-12 x=y*q",
        (
            "{A} has {x} {obj} and shares them equally among {y} friends.",
            "{x} {obj} are packed into {y} {boxes}, with the same number in each {box}.",
            "A teacher hands out {x} {obj} to {y} pupils so that each gets the same number.",
        ),
        ("How many {obj} does each one get?", "How many {obj} go to each?"),
        (
            "The {x} {obj} are split into {y} equal parts. {a=x/y}, so each gets {a} {obj}.",
            "We divide the {obj} by the number of parts: {a=x/y}.",
        ),
    ),
    Story(
        "pack",
        "y:2-9 q:2-12 x=y*q",
        (
            "{A} has {x} {obj} and puts {y} {obj} into each {box}.",
            "A {shop} packs {x} {obj} into {boxes} that hold {y} {obj} each.",
        ),
        ("How many {boxes} are needed?", "How many {boxes} will be filled?"),
        (
            "Each {box} takes {y} of the {x} {obj}. {a=x/y}, so {a} {boxes} are filled.",
            "We divide all the {obj} by the number in one {box}. {a=x/y}.",
        ),
    ),
    Story(
        "price",
        "x:2-12 y:2-12",
        (
            "{A_one} costs {x} dollars at the {shop}. {A} buys {y} {many}.",
            "At the {shop} {A} buys {y} {many} for {x} dollars each.",
            "The price of {a_one} is {x} dollars and {A} needs {y} {many}.",
        ),
        ("How many dollars does {A} pay?", "What does {A} pay in dollars?", "How much is that in dollars?"),
        (
            "{A} buys {y} {many} at {x} dollars each. {a=y*x}, so {he} pays {a} dollars.",
            "We multiply the number of {many} by the price of one. {a=y*x} dollars.",
        ),
    ),
    Story(
        "change",
        "x:8-40 y:3-30",
        (
            "{A} has {x} dollars and buys {a_one} for {y} dollars.",
            "{A} pays for {a_one} that costs {y} dollars with {x} dollars.",
            "With {x} dollars in {his} pocket, {A} goes to the {shop} and spends {y} dollars on {a_one}.",
        ),
        ("How many dollars are left?", "How many dollars does {A} have afterwards?"),
        (
            "{A} starts with {x} dollars and spends {y} dollars. {a=x-y}, so {a} dollars are left.",
            "Take the price from the money {A} had: {a=x-y}.",
        ),
    ),
    Story(
        "pages",
        "x:20-40 y:4-30",
        (
            "{A} is reading a book of {x} pages and has read {y} pages.",
            "A book has {x} pages. {A} read the first {y} pages yesterday.",
            "{A} must type {x} pages and has finished {y} pages so far.",
        ),
        ("How many pages are left?", "How many pages remain?", "How many pages does {A} still have to do?"),
        (
            "Of the {x} pages, {y} are done. {a=x-y}, so {a} pages remain.",
            "We take the finished pages from all the pages: {a=x-y}.",
        ),
    ),
    Story(
        "older",
        "x:4-35 y:2-20",
        (
            "{A} is {x} years old. {B} is {y} years older than {A}.",
            "{B} was born {y} years before {A}, who is {x} years old.",
        ),
        ("How old is {B}?", "What is the age of {B}?"),
        (
            "{B} is {y} years older than {A}, who is {x}. {a=x+y}, so {B} is {a} years old.",
            "We add the difference to the age of {A}: {a=x+y}.",
        ),
    ),
    Story(
        "younger",
        "x:10-40 y:2-20",
        (
            "{A} is {x} years old. {B} is {y} years younger than {A}.",
            "{A}, who is {x} years old, was born {y} years before {B}.",
        ),
        ("How old is {B}?", "What is the age of {B}?"),
        (
            "{B} is {y} years younger than {A}, who is {x}. {a=x-y}, so {B} is {a} years old.",
            "We take the difference from the age of {A}: {a=x-y}.",
        ),
    ),
    Story(
        "speed",
        "x:2-12 y:2-12",
        (
            "{A} walks {x} miles every day for {y} days.",
            "A slow boat goes {x} miles each hour and travels for {y} hours.",
            "{A} rides {x} miles to a lake each week. {He} has done this for {y} weeks.",
        ),
        ("How many miles is that in total?", "How many miles is that altogether?"),
        (
            "The distance is {x} miles, done {y} times. {a=x*y}, which makes {a} miles.",
            "We multiply {x} miles by {y}: {a=x*y}.",
        ),
    ),
    Story(
        "road",
        "x:12-40 y:4-30",
        (
            "The road to the sea is {x} miles long. {A} has driven {y} miles.",
            "{A} plans a trip of {x} miles and has done {y} miles by noon.",
        ),
        ("How many miles are still to go?", "How many miles are left?"),
        (
            "The whole way is {x} miles and {y} miles are done. {a=x-y}, so {a} miles are left.",
            "We subtract the miles already done: {a=x-y}.",
        ),
    ),
    Story(
        "people",
        "x:10-35 y:3-20",
        (
            "There are {x} people on a train. At the next stop {y} people get on.",
            "{x} people are in the hall, and then {y} more people come in.",
            "A club has {x} members, and this month {y} people join it.",
        ),
        ("How many people are there then?", "How many people is that now?"),
        (
            "At first there are {x} people, and {y} more come. {a=x+y}, so there are {a} people.",
            "We add the new people to those already there: {a=x+y}.",
        ),
    ),
    Story(
        "leave",
        "x:10-40 y:3-30",
        (
            "There are {x} people on a bus. At the next stop {y} people get off.",
            "{x} birds sit on a roof, and then {y} of them fly away.",
            "{x} children play in the park. Then {y} of them go home.",
        ),
        ("How many are left?", "How many stay?", "How many are still there?"),
        (
            "At first there are {x}, and {y} leave. {a=x-y}, so {a} are left.",
            "We take away those who leave: {a=x-y}.",
        ),
    ),
    Story(
        "twice",
        "x:3-40",
        (
            "{A} has {x} {obj}. {B} has twice as many {obj} as {A}.",
            "{A} picked {x} {obj}, and {B} picked double that number.",
            "{B} bought two times as many {obj} as {A}, who bought {x} {obj}.",
        ),
        ("How many {obj} is that for {B}?", "What is the number of {obj} for {B}?"),
        (
            "{B} has two times the {x} {obj} of {A}. {a=x*2}, so {B} has {a} {obj}.",
            "Twice as many means multiplying by 2: {a=x*2}.",
        ),
    ),
    Story(
        "half",
        "q:3-40 x=q*2",
        (
            "{A} has {x} {obj}. {B} has half as many {obj} as {A}.",
            "{A} bought {x} {obj} and gave away half of them.",
            "A {box} holds {x} {obj}, and half of them are sold.",
        ),
        ("What number of {obj} is half?", "How many {obj} is half of them?"),
        (
            "Half of the {x} {obj} means dividing by 2. {a=x/2}, so it is {a} {obj}.",
            "We divide the number of {obj} into two equal parts: {a=x/2}.",
        ),
    ),
)

BY_LEVEL: dict[int, tuple[Story, ...]] = {1: ONE, 2: TWO, 3: THREE}
