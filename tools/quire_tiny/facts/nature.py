"""Elements, planets, animals, plants, colours and the body."""

from __future__ import annotations

from tools.quire_tiny.question import Fact, facts_from, rows

# The elements in order of their atomic number, with their symbols.
ELEMENTS = """
hydrogen H helium He lithium Li beryllium Be boron B carbon C nitrogen N oxygen O fluorine F neon Ne
sodium Na magnesium Mg aluminium Al silicon Si phosphorus P sulfur S chlorine Cl argon Ar potassium
K calcium Ca scandium Sc titanium Ti vanadium V chromium Cr manganese Mn iron Fe cobalt Co nickel Ni
copper Cu zinc Zn gallium Ga germanium Ge arsenic As selenium Se bromine Br krypton Kr rubidium Rb
strontium Sr yttrium Y zirconium Zr niobium Nb molybdenum Mo technetium Tc ruthenium Ru rhodium Rh
palladium Pd silver Ag cadmium Cd indium In tin Sn antimony Sb tellurium Te iodine I xenon Xe
"""
HEAVY = rows("""
caesium: Cs, 55; barium: Ba, 56; tungsten: W, 74; platinum: Pt, 78; gold: Au, 79; mercury: Hg, 80
lead: Pb, 82; bismuth: Bi, 83; radon: Rn, 86; radium: Ra, 88; thorium: Th, 90; uranium: U, 92
plutonium: Pu, 94
""")

PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")

SOUNDS = rows("""
a dog: barks; a cat: meows; a cow: moos; a sheep: bleats; a horse: neighs; a pig: oinks
a duck: quacks
a lion: roars; a wolf: howls; a snake: hisses; a bee: buzzes; a frog: croaks; an owl: hoots
a mouse: squeaks
a rooster: crows; a donkey: brays; a crow: caws; a bird: sings; an elephant: trumpets
a monkey: chatters
""")
BABIES = rows("""
a dog: a puppy; a cat: a kitten; a cow: a calf; a sheep: a lamb; a horse: a foal; a pig: a piglet
a duck: a duckling; a lion: a cub; a bear: a cub; a wolf: a pup; a frog: a tadpole; a goat: a kid
a deer: a fawn; a kangaroo: a joey; a swan: a cygnet; an eagle: an eaglet; a hen: a chick
an owl: an owlet; a rabbit: a kit; a goose: a gosling; a fish: a fry; a hare: a leveret
an elephant: a calf
""")
CLASSES = rows("""
a dog: a mammal; a cat: a mammal; a whale: a mammal; a dolphin: a mammal; a bat: a mammal
a horse: a mammal
an elephant: a mammal; a mouse: a mammal; a bear: a mammal; a human: a mammal; an eagle: a bird
a penguin: a bird; an owl: a bird; a duck: a bird; an ostrich: a bird; a parrot: a bird
a shark: a fish
a salmon: a fish; a tuna: a fish; a trout: a fish; a snake: a reptile; a lizard: a reptile
a crocodile: a reptile; a turtle: a reptile; a frog: an amphibian; a toad: an amphibian
a newt: an amphibian; a salamander: an amphibian; a bee: an insect; an ant: an insect
a butterfly: an insect; a beetle: an insect; a mosquito: an insect; a spider: an arachnid
a scorpion: an arachnid; a crab: a crustacean; a lobster: a crustacean; a snail: a mollusc
an octopus: a mollusc; a squid: a mollusc
""")
LEGS = rows("""
a dog: four; a cat: four; a horse: four; a cow: four; a human: two; a bird: two; a chicken: two
a spider: eight
an ant: six; a bee: six; a beetle: six; a butterfly: six; a crab: ten; a snake: no; a fish: no
a frog: four
a lobster: ten; a scorpion: eight; an elephant: four; a worm: no
""")
HOMES = rows("""
a bird: a nest; a bee: a hive; a fox: a den; a rabbit: a burrow; a spider: a web; a horse: a stable
a pig: a sty; a dog: a kennel; a bear: a cave; a beaver: a lodge; an ant: an anthill; a lion: a den
a chicken: a coop; a fish: water; a cow: a barn; a mole: a tunnel
""")
FOOD = rows("""
a cow: grass; a panda: bamboo; a koala: eucalyptus leaves; a rabbit: grass and carrots; a lion: meat
a squirrel: nuts; a bee: nectar; a caterpillar: leaves; a cat: meat; a monkey: fruit; a seal: fish
a shark: fish; a frog: insects; a spider: insects; an owl: mice; a horse: hay; a penguin: fish
a goat: grass
""")
COLOURS = rows("""
the sky on a clear day: blue; grass: green; snow: white; blood: red; a banana: yellow
an orange: orange
coal: black; a lemon: yellow; a strawberry: red; milk: white; a carrot: orange; chocolate: brown
a ripe tomato: red; an emerald: green; a ruby: red; a sapphire: blue; the sun in a drawing: yellow
a polar bear: white; a raven: black; a flamingo: pink; an elephant: grey; a lime: green
a cherry: red
an aubergine: purple; a pumpkin: orange; a stop sign: red; lavender: purple; a frog: green
salt: white; gold: yellow
""")
MIXES = rows("""
red and blue: purple; red and yellow: orange; blue and yellow: green; black and white: grey
red and white: pink
yellow and blue: green; blue and red: purple; yellow and red: orange; white and black: grey
white and red: pink
""")
ORGANS = rows("""
see: your eyes; hear: your ears; smell: your nose; taste: your tongue; think: your brain
breathe: your lungs
pump blood: your heart; digest food: your stomach; walk: your legs; chew: your teeth
clean your blood: your kidneys
""")
SUPERLATIVES = rows("""
largest animal: the blue whale; fastest land animal: the cheetah; tallest animal: the giraffe
largest land animal: the elephant; largest bird: the ostrich; smallest bird: the hummingbird
king of the animals: the lion; largest fish: the whale shark; slowest mammal: the sloth
largest cat: the tiger; animal with black and white stripes: the zebra
animal with a trunk: the elephant
animal with a pouch: the kangaroo; animal with a hump: the camel
bird that cannot fly but swims: the penguin
largest planet: Jupiter; smallest planet: Mercury; hottest planet: Venus; red planet: Mars
planet with the largest rings: Saturn; planet we live on: Earth; nearest star: the Sun
hardest natural material: diamond; lightest element: hydrogen; most common gas in the air: nitrogen
gas that we need to breathe: oxygen; gas that plants take in: carbon dioxide
largest organ of the body: the skin
longest bone of the body: the femur; metal that is liquid at room temperature: mercury
force that makes things fall: gravity; centre of the Solar System: the Sun; star of the day: the Sun
""")
NUMBERS = rows("""
days in a week: 7; months in a year: 12; hours in a day: 24; minutes in an hour: 60
seconds in a minute: 60
days in a year: 365; days in a leap year: 366; weeks in a year: 52; planets in the Solar System: 8
continents: 7; sides in a triangle: 3; sides in a square: 4; sides in a pentagon: 5
sides in a hexagon: 6
sides in an octagon: 8; letters in the alphabet: 26; years in a century: 100; years in a decade: 10
years in a millennium: 1000; fingers on a hand: 5; fingers on two hands: 10; wheels on a bicycle: 2
wheels on a car: 4; wheels on a tricycle: 3; strings on a violin: 4; strings on a guitar: 6
keys on a piano: 88
colours in the rainbow: 7; cards in a deck: 52; squares on a chess board: 64
players in a football team: 11
bones in the human body: 206; teeth in an adult: 32; chambers in the heart: 4; eggs in a dozen: 12
seasons in a year: 4; bits in a byte: 8; degrees in a circle: 360; degrees in a right angle: 90
players in a basketball team: 5; vowels in the alphabet: 5; faces on a cube: 6
zeros in a million: 6
""")

SYMBOL = (
    "What is the chemical symbol of {k}?",
    "What is the symbol for {k}?",
    "Which symbol stands for {k}?",
    "Give me the chemical symbol of {k}.",
    "How is {k} written in chemistry?",
    "What's the symbol of the element {k}?",
)
ELEMENT = (
    "Which element has the symbol {v}?",
    "What element is {v}?",
    "Which chemical element is written {v}?",
    "What does {v} stand for in chemistry?",
    "Name the element with the symbol {v}.",
)
ATOMIC = (
    "What is the atomic number of {k}?",
    "Which atomic number does {k} have?",
    "Tell me the atomic number of {k}.",
    "What's the atomic number of {k}?",
    "Give the atomic number of {k}.",
)
SOUND = (
    "What sound does {k} make?",
    "What does {k} do to make a sound?",
    "Which sound does {k} make?",
    "Tell me the sound {k} makes.",
    "How does {k} sound?",
)
BABY = (
    "What is the baby of {k} called?",
    "What do you call the baby of {k}?",
    "What is the young of {k} called?",
    "What is the name for the young of {k}?",
    "How is the young of {k} called?",
)
CLASS = (
    "What kind of animal is {k}?",
    "What type of animal is {k}?",
    "What is {k}, a mammal, a bird or something else?",
    "To which group of animals does {k} belong?",
    "Which class of animal is {k}?",
)
LEG = (
    "How many legs does {k} have?",
    "How many legs has {k} got?",
    "What is the number of legs of {k}?",
    "Tell me how many legs {k} has.",
    "Do you know how many legs {k} has?",
)
HOME = (
    "Where does {k} live?",
    "What is the home of {k} called?",
    "In what does {k} live?",
    "What does {k} live in?",
    "Tell me where {k} lives.",
)
EATS = (
    "What does {k} eat?",
    "What is the food of {k}?",
    "What do you feed {k}?",
    "Tell me what {k} eats.",
    "What does {k} like to eat?",
)
COLOUR = (
    "What colour is {k}?",
    "What is the colour of {k}?",
    "Which colour does {k} have?",
    "What color is {k}?",
    "Tell me the colour of {k}.",
)
MIX = (
    "What colour do you get when you mix {k}?",
    "What do {k} make?",
    "Which colour is made of {k}?",
    "Mix {k}. What colour is it?",
    "What happens if I mix {k} paint?",
)
ORGAN = (
    "What do you use to {k}?",
    "With what do you {k}?",
    "Which part of the body is used to {k}?",
    "What part of your body helps you {k}?",
    "What do people {k} with?",
)
THE = (
    "What is the {k}?",
    "What's the {k}?",
    "Which is the {k}?",
    "Name the {k}.",
    "Can you name the {k}?",
    "Do you know the {k}?",
)
MANY = (
    "How many {k}?",
    "What is the number of {k}?",
    "Tell me the number of {k}.",
    "How many {k} are there?",
    "Do you know how many {k} there are?",
)


def elements() -> tuple[dict[str, str], dict[str, str]]:
    """Return element -> symbol and element -> atomic number."""
    words = ELEMENTS.split()
    symbols = dict(zip(words[::2], words[1::2], strict=True))
    numbers = {name: str(i + 1) for i, name in enumerate(symbols)}
    for name, entry in HEAVY.items():
        symbols[name], numbers[name] = entry.split(", ")
    return symbols, numbers


def planet_facts() -> list[Fact]:
    """Return the place of each planet, both ways."""
    made = []
    for planet, ordinal in zip(PLANETS, ORDINALS, strict=True):
        asked = (
            f"Which planet is the {ordinal} from the Sun?",
            f"What is the {ordinal} planet from the Sun?",
            f"Name the {ordinal} planet from the Sun.",
            f"What is the {ordinal} planet of the Solar System?",
        )
        answer = f"The {ordinal} planet from the Sun is {planet}."
        made.append(Fact("planet", ordinal, asked, answer, planet))
    return made


def facts() -> list[Fact]:
    """Return every fact about nature."""
    symbols, numbers = elements()
    made = facts_from("symbol", symbols, SYMBOL, "The symbol of {k} is {v}.")
    made += [
        Fact(f.kind, f.name, f.prompts, f.answer, f.name.capitalize())
        for f in facts_from("element", symbols, ELEMENT, "{v} is the symbol of {k}.")
    ]
    made += facts_from("atomic_number", numbers, ATOMIC, "The atomic number of {k} is {v}.")
    made += planet_facts()
    made += facts_from("sound", SOUNDS, SOUND, "{K} {v}.")
    made += facts_from("baby", BABIES, BABY, "The young of {k} is called {v}.")
    made += facts_from("class", CLASSES, CLASS, "{K} is {v}.")
    made += facts_from("legs", LEGS, LEG, "{K} has {v} legs.")
    made += facts_from("home", HOMES, HOME, "{K} lives in {v}.")
    made += facts_from("food", FOOD, EATS, "{K} eats {v}.")
    made += facts_from("colour", COLOURS, COLOUR, "The colour of {k} is {v}.")
    made += facts_from("mix", MIXES, MIX, "If you mix {k}, you get {v}.")
    made += facts_from("organ", ORGANS, ORGAN, "You use {v} to {k}.")
    made += facts_from("superlative", SUPERLATIVES, THE, "The {k} is {v}.")
    made += facts_from("number", NUMBERS, MANY, "The number of {k} is {v}.")
    return made
