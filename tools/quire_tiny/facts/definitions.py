"""One-sentence explanations: what a thing is."""

from __future__ import annotations

from tools.quire_tiny.question import Fact, rows

DEFINITIONS = rows("""
a volcano: a mountain from which hot melted rock can flow
an island: a piece of land with water all around it
a desert: a dry place where it almost never rains
a river: a stream of fresh water that flows to the sea
a lake: a large area of water with land all around it
a glacier: a large mass of ice that moves slowly down a valley
an earthquake: a sudden shaking of the ground
a rainbow: an arc of colours that appears when the sun shines through rain
a cloud: a mass of tiny drops of water in the sky
lightning: a flash of electricity in a storm
thunder: the loud sound that follows a flash of lightning
fog: a cloud that touches the ground
a star: a huge ball of hot gas that gives off light
a planet: a large round body that moves around a star
a moon: a body that moves around a planet
a galaxy: a very large group of stars held together by gravity
a comet: a ball of ice and dust that grows a tail near the Sun
an eclipse: an event in which one body in space hides another
an atom: the smallest part of a chemical element
a molecule: a group of atoms bound together
water: a liquid made of hydrogen and oxygen
ice: water that has frozen
steam: water that has become a gas
photosynthesis: the way plants make food from light, water and carbon dioxide
a cell: the smallest living part of a plant or an animal
a fossil: the remains of a plant or animal from long ago, kept in stone
a dinosaur: a reptile that lived millions of years ago
a mammal: an animal that feeds its young with milk
a bird: an animal with feathers, wings and a beak
an insect: a small animal with six legs
a reptile: a cold-blooded animal with scales
a seed: the part of a plant from which a new plant grows
a forest: a large area of land covered with trees
honey: a sweet food that bees make from nectar
bread: a food baked from flour, water and yeast
cheese: a food made from milk
a dictionary: a book that explains the meaning of words
a library: a place where you can read and borrow books
a museum: a building where old or beautiful things are shown
a hospital: a place where sick people are treated
a school: a place where children learn
a bridge: a structure that carries a road over a river or a valley
a lighthouse: a tower with a light that guides ships
a map: a drawing that shows where places are
a compass: a tool with a needle that points north
a triangle: a shape with three straight sides
a square: a shape with four equal sides and four right angles
a circle: a round shape whose points are all equally far from its centre
a prime number: a number greater than one that only one and itself divide
an even number: a number that two divides without remainder
an odd number: a number that two does not divide without remainder
a fraction: a part of a whole number
a verb: a word for an action or a state
a noun: a word for a person, a place or a thing
an adjective: a word that describes a noun
a poem: a short text that plays with sound and rhythm
a democracy: a country in which the people choose who governs
a king: a man who rules a kingdom
a continent: one of the seven large areas of land on Earth
gravity: the force that pulls things towards each other
electricity: a form of energy carried by moving charges
a magnet: an object that attracts iron
a computer: a machine that follows instructions to work with data
a program: a list of instructions for a computer
an algorithm: a series of steps that solves a problem
a variable: a name for a value in a program
a function: a named piece of a program that can be called
a loop: a part of a program that is repeated
a token: a small piece of text that a language model reads or writes
a language model: a program that predicts the next piece of a text
a tokenizer: a program that cuts text into tokens
a cache: a store that keeps results so that they need not be computed again
a server: a program that answers requests from other programs
a browser: a program that shows web pages
the Internet: a network that joins computers all over the world
an orchestra: a large group of musicians who play together
a violin: an instrument with four strings played with a bow
a piano: an instrument with black and white keys
chess: a board game in which two players try to trap the king
a quire: a small stack of folded sheets of paper in a book
""")

ASK_WHAT = (
    "What is {k}?",
    "What's {k}?",
    "Explain what {k} is.",
    "Can you explain what {k} is?",
    "Tell me what {k} is.",
    "Define {k}.",
    "I do not know what {k} is. Please explain.",
)


def facts() -> list[Fact]:
    """Return every definition."""
    made = []
    for k, v in DEFINITIONS.items():
        asked = tuple(p.format(k=k) for p in ASK_WHAT)
        made.append(Fact("definition", k, asked, f"{k[0].upper()}{k[1:]} is {v}."))
    return made
