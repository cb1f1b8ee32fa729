"""The written stories of `arith` with two and three steps. Data only."""

from __future__ import annotations

from bundled_tasks.arith_engine import Story

TWO = (
    Story(
        "more-total",
        "x:3-18 y:2-15",
        (
            "{A} has {x} {obj}. {B} has {y} more {obj} than {A}.",
            "{A} picked {x} {obj}, and {B} picked {y} {obj} more than {A} did.",
            "{A} ordered {x} {obj}. {B} ordered {y} more than {A}.",
        ),
        ("How many {obj} do they have together?", "How many {obj} is that for the two of them together?"),
        (
            "{B} has {a=x+y} {obj}. Together they have {b=x+a} {obj}.",
            "First find the number for {B}: {a=x+y}. Then add both: {b=x+a}.",
        ),
        "food",
    ),
    Story(
        "fewer-total",
        "x:8-24 y:3-20",
        (
            "{A} has {x} {obj}. {B} has {y} fewer {obj} than {A}.",
            "{A} bought {x} {obj}, and {B} bought {y} {obj} fewer than {A}.",
        ),
        ("How many {obj} do they have together?", "What is the total number of {obj}?"),
        (
            "{B} has {a=x-y} {obj}. Together they have {b=x+a} {obj}.",
            "First find the number for {B}: {a=x-y}. Then add both: {b=x+a}.",
        ),
    ),
    Story(
        "boxes-plus",
        "x:2-9 y:2-12 z:3-25",
        (
            "{A} has {x} {boxes} with {y} {obj} in each {box}. {He} also has {z} loose {obj}.",
            "There are {x} {boxes} with {y} {obj} each, and {z} more {obj} lie on the floor.",
            "{A} filled {x} {boxes} with {y} {obj} each and had {z} {obj} left over.",
        ),
        ("How many {obj} are there in all?", "What is the total number of {obj}?"),
        (
            "The {boxes} hold {a=x*y} {obj}. With the other {z} there are {b=a+z} {obj}.",
            "First multiply: {a=x*y}. Then add the rest: {b=a+z}.",
        ),
    ),
    Story(
        "boxes-minus",
        "x:2-12 y:2-12 z:3-30",
        (
            "{A} buys {x} {boxes} with {y} {obj} in each {box}. Then {he} gives {z} {obj} to {B}.",
            "{A} had {x} {boxes} of {y} {obj} each and sold {z} {obj} at the {shop}.",
        ),
        ("How many {obj} are left?", "How many {obj} does {A} have now?"),
        (
            "At first {A} has {a=x*y} {obj}. Then {z} go away, so {b=a-z} {obj} are left.",
            "First multiply: {a=x*y}. Then subtract: {b=a-z}.",
        ),
    ),
    Story(
        "change-many",
        "x:2-9 y:2-9 z:12-40",
        (
            "{A} has {z} dollars. {He} buys {y} {many} that cost {x} dollars each.",
            "{A_one} costs {x} dollars. {A} buys {y} {many} and had {z} dollars at first.",
            "{A} goes to the {shop} with {z} dollars and pays for {y} {many} at {x} dollars each.",
        ),
        ("How many dollars are left?", "How many dollars does {A} have afterwards?"),
        (
            "The {many} cost {a=y*x} dollars. {A} has {b=z-a} dollars left.",
            "First find the cost: {a=y*x}. Then take it from the money: {b=z-a}.",
        ),
    ),
    Story(
        "two-prices",
        "x:3-20 y:3-20 z:12-40",
        (
            "{A} buys {a_one} for {x} dollars and {a_one2} for {y} dollars. {He} had {z} dollars.",
            "{A} has {z} dollars and pays {x} dollars for {a_one} and {y} dollars for {a_one2}.",
        ),
        ("How many dollars are left?", "How much money in dollars is left?"),
        (
            "Both things cost {a=x+y} dollars. {A} has {b=z-a} dollars left.",
            "Add the prices: {a=x+y}. Subtract from what {he} had: {b=z-a}.",
        ),
    ),
    Story(
        "join-share",
        "a:12-40 y:2-8 x:5-35 z=a-x q=a/y",
        (
            "{A} has {x} {obj} and {B} has {z} {obj}. They share all of them equally among {y} friends.",
            "{x} {obj} and {z} {obj} are mixed and packed into {y} equal {boxes}.",
        ),
        ("How many {obj} are in each share?", "How many {obj} go into each part?"),
        (
            "In all there are {a=x+z} {obj}. In {y} equal parts that is {b=a/y} {obj} each.",
            "Add first: {a=x+z}. Then divide by {y}: {b=a/y}.",
        ),
    ),
    Story(
        "use-share",
        "a:6-36 y:2-8 z:3-20 x=a+z q=a/y",
        (
            "{A} has {x} {obj}. {He} keeps {z} {obj} and shares the rest equally among {y} friends.",
            "From {x} {obj}, {z} are thrown away, and the others are put into {y} equal {boxes}.",
        ),
        ("How many {obj} are in each share?", "How many {obj} go into each part?"),
        (
            "To share there are {a=x-z} {obj}. In {y} equal parts that is {b=a/y} {obj} each.",
            "Subtract first: {a=x-z}. Then divide by {y}: {b=a/y}.",
        ),
    ),
    Story(
        "bus",
        "x:10-36 y:3-20 z:3-20",
        (
            "A bus has {x} people on it. At one stop {y} people get off and {z} people get on.",
            "{x} people are in a shop. Then {y} of them leave and {z} others come in.",
            "There were {x} birds in a tree. After a while {y} flew away and {z} new birds came.",
        ),
        ("How many are there now?", "What number is there after that?"),
        (
            "After {y} leave there are {a=x-y}. After {z} come there are {b=a+z}.",
            "First subtract: {a=x-y}. Then add: {b=a+z}.",
        ),
    ),
    Story(
        "week",
        "x:2-9 y:2-9 z:12-40",
        (
            "{A} wants to collect {z} {obj}. {He} collects {x} {obj} a day and has done so for {y} days.",
            "{A} needs {z} {obj} and gets {x} {obj} each day for {y} days.",
        ),
        ("How many {obj} are still missing?", "How many more {obj} are needed?"),
        (
            "So far there are {a=x*y} {obj}. Still missing are {b=z-a} {obj}.",
            "In {y} days that makes {a=x*y}. The rest is {b=z-a}.",
        ),
    ),
    Story(
        "twice-total",
        "x:3-13",
        (
            "{A} has {x} {obj}, and {B} has twice as many {obj} as {A}.",
            "{B} found double the number of {obj} that {A} found. {A} found {x} {obj}.",
        ),
        ("How many {obj} do they have together?", "How many {obj} is that in total?"),
        (
            "{B} has {a=x*2} {obj}. Together they have {b=x+a} {obj}.",
            "Twice {x} is {a=x*2}. Then the total is {b=x+a}.",
        ),
    ),
    Story(
        "ages-sum",
        "x:4-18 y:2-15",
        (
            "{A} is {x} years old and {B} is {y} years older than {A}.",
            "{B} is {y} years older than {A}. {A} is {x} years old.",
        ),
        ("What is the sum of their ages?", "How old are they together?"),
        (
            "{B} is {a=x+y} years old. The sum of their ages is {b=x+a}.",
            "The age of {B} is {a=x+y}. Together that makes {b=x+a} years.",
        ),
    ),
    Story(
        "three-groups",
        "x:3-20 y:3-20 z:3-20",
        (
            "{A} has {x} {obj}, {B} has {y} {obj} and {C} has {z} {obj}.",
            "On Monday {A} sold {x} {obj}, on Tuesday {y} {obj} and on Friday {z} {obj}.",
            "There are {x} red, {y} blue and {z} green {obj} in a {box}.",
        ),
        ("How many {obj} is that in total?", "How many {obj} are there altogether?"),
        (
            "The first two groups make {a=x+y} {obj}. With the third there are {b=a+z} {obj}.",
            "Add the first two numbers: {a=x+y}. Add the third: {b=a+z}.",
        ),
        "good",
    ),
)

THREE = (
    Story(
        "boxes-two-kinds",
        "x:2-9 y:2-9 z:2-9 w:2-9",
        (
            "{A} has {x} {boxes} with {y} {obj} each and {z} {boxes} with {w} {obj} each.",
            "There are {x} small {boxes} with {y} {obj} each and {z} large {boxes} with {w} {obj} each.",
        ),
        ("How many {obj} are there in all?", "What is the total number of {obj}?"),
        (
            "The first {boxes} hold {a=x*y} {obj}. The others hold {b=z*w}. In all there are {c=a+b} {obj}.",
            "Multiply for each kind: {a=x*y} and {b=z*w}. Then add: {c=a+b}.",
        ),
    ),
    Story(
        "shopping",
        "x:2-9 y:2-9 z:2-20 w:15-40",
        (
            "{A} has {w} dollars. {He} buys {y} {many} for {x} dollars each and {a_one2} for {z} dollars.",
            "{A} had {w} dollars. {He} paid for {y} {many} at {x} dollars each and {a_one2} at {z} dollars.",
        ),
        ("How many dollars are left?", "How many dollars does {A} still have?"),
        (
            "The {many} cost {a=y*x} dollars. With the {one2} that is {b=a+z}. So {c=w-b} dollars are left.",
            "First {a=y*x} for the {many}. Then {b=a+z} for everything. So {c=w-b} dollars are left.",
        ),
    ),
    Story(
        "three-friends",
        "x:3-12 y:2-8 z:2-10",
        (
            "{A} has {x} {obj}. {B} has {y} more {obj} than {A}. {C} has {z} more {obj} than {B}.",
            "{A} picked {x} {obj}, {B} picked {y} more than {A}, and {C} picked {z} more than {B}.",
        ),
        ("How many {obj} do {B} and {C} have together?", "How many {obj} is that for {B} and {C} together?"),
        (
            "{B} has {a=x+y} {obj}. {C} has {b=a+z} {obj}. Together they have {c=a+b} {obj}.",
            "For {B} we get {a=x+y}, and for {C} we get {b=a+z}. The sum is {c=a+b}.",
        ),
    ),
    Story(
        "up-down-friends",
        "x:4-20 y:2-15 z:2-15",
        (
            "{A} has {x} {obj}. {B} has {y} more {obj} than {A}. {C} has {z} fewer {obj} than {B}.",
            "{A} sold {x} {obj}, {B} sold {y} more than {A}, and {C} sold {z} fewer than {B}.",
        ),
        ("How many {obj} is that for {A} and {C} together?", "What is the sum of {A}'s and {C}'s {obj}?"),
        (
            "{B} has {a=x+y} {obj}. {C} has {b=a-z} {obj}. {A} and {C} together have {c=x+b} {obj}.",
            "For {B} we get {a=x+y}, and for {C} we get {b=a-z}. The sum with {A} is {c=x+b}.",
        ),
    ),
    Story(
        "make-sell-share",
        "x:2-9 y:2-12 z:2-30 w:2-6",
        (
            "{A} has {x} {boxes} of {y} {obj}. {He} sells {z} and shares the rest equally among {w} friends.",
            "From {x} {boxes} of {y} {obj} each, {z} {obj} are used. The others go into {w} equal bags.",
        ),
        ("How many {obj} are in each share?", "How many {obj} go into each part?"),
        (
            "At first there are {a=x*y} {obj}. Then {b=a-z} {obj} are left. Each part gets {c=b/w} {obj}.",
            "Multiply: {a=x*y}. Subtract: {b=a-z}. Divide: {c=b/w}.",
        ),
    ),
    Story(
        "work-days",
        "x:2-12 y:2-9 z:2-15 w:2-15",
        (
            "{A} earns {x} dollars a day for {y} days. {He} spends {z} on food and {w} on {a_one}.",
            "For {y} days {A} earns {x} dollars a day. {He} pays {z} for {a_one} and {w} for {a_one2}.",
        ),
        ("How many dollars are left?", "How many dollars does {A} keep?"),
        (
            "{A} earns {a=x*y} dollars. After one payment {b=a-z} are left, and after the other {c=b-w}.",
            "The pay is {a=x*y}. Then {b=a-z}, and then {c=b-w} dollars are left.",
        ),
    ),
    Story(
        "bus-two-stops",
        "x:8-30 y:3-15 z:3-15 w:3-12",
        (
            "A bus has {x} people. At one stop {y} get on and {z} get off. At the next stop {w} get on.",
            "A library has {x} visitors. Then {y} come in, {z} leave, and {w} more come in.",
        ),
        ("How many people are there then?", "How many people is that at the end?"),
        (
            "After {y} come there are {a=x+y}. After {z} leave there are {b=a-z}. Then there are {c=b+w}.",
            "Add: {a=x+y}. Subtract: {b=a-z}. Add again: {c=b+w}.",
        ),
    ),
    Story(
        "twice-then-total",
        "x:3-9 y:2-15",
        (
            "{A} has {x} {obj}. {B} has twice as many as {A}. {C} has {y} more {obj} than {B}.",
            "{B} found twice as many {obj} as {A}, and {C} found {y} more than {B}. {A} found {x} {obj}.",
        ),
        ("How many {obj} do {A} and {C} have together?", "How many {obj} is that for {A} and {C} together?"),
        (
            "{B} has {a=x*2} {obj}. {C} has {b=a+y} {obj}. {A} and {C} together have {c=x+b} {obj}.",
            "Twice {x} is {a=x*2}. Then {C} has {b=a+y}. The sum is {c=x+b}.",
        ),
    ),
    Story(
        "rows-gap",
        "x:2-12 y:2-9 z:2-12 w:2-9",
        (
            "{A} plants {x} rows of {y} trees. {B} plants {z} rows of {w} trees.",
            "{A} fills {x} {boxes} with {y} {obj} each, and {B} fills {z} {boxes} with {w} {obj} each.",
        ),
        ("How many more is that for {A} than for {B}?", "By how many is {A} ahead of {B}?"),
        (
            "{A} has {a=x*y}. {B} has {b=z*w}. The difference is {c=a-b}.",
            "Multiply for each one: {a=x*y} and {b=z*w}. Then subtract: {c=a-b}.",
        ),
    ),
    Story(
        "three-sums-pack",
        "x:3-18 y:3-18 z:3-18 w:2-6",
        (
            "{A} has {x} {obj}, {B} has {y} and {C} has {z}. They pack all of them into {w} equal {boxes}.",
            "{x} red, {y} blue and {z} green {obj} are shared equally among {w} children.",
        ),
        ("How many {obj} are in each share?", "How many {obj} go into each part?"),
        (
            "The first two groups make {a=x+y}. With the third that is {b=a+z}. Each part gets {c=b/w}.",
            "Add the first two: {a=x+y}. Add the third: {b=a+z}. Divide: {c=b/w}.",
        ),
        "good",
    ),
)
