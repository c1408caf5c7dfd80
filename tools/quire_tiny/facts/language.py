"""Words: opposites, plurals, past tenses, translations, the calendar, the alphabet."""

from __future__ import annotations

from tools.quire_tiny.question import Fact, facts_from, rows

OPPOSITES = rows("""
hot: cold; big: small; tall: short; fast: slow; up: down; left: right; day: night; good: bad
happy: sad
open: closed; full: empty; wet: dry; light: dark; hard: soft; new: old; young: old; rich: poor
strong: weak
early: late; near: far; high: low; inside: outside; long: short; thick: thin; wide: narrow
loud: quiet
clean: dirty; heavy: light; easy: difficult; true: false; first: last; win: lose; love: hate
push: pull
buy: sell; give: take; begin: end; start: stop; arrive: leave; laugh: cry; remember: forget
always: never
everything: nothing; friend: enemy; war: peace; north: south; east: west; summer: winter
above: below
before: after; black: white; sweet: sour; sharp: blunt; smooth: rough; deep: shallow; brave: afraid
cheap: expensive; asleep: awake; alive: dead; safe: dangerous; simple: complex; guilty: innocent
ancient: modern; polite: rude; generous: selfish; success: failure; question: answer; enter: exit
accept: refuse; increase: decrease; maximum: minimum; same: different; public: private
import: export
future: past; tight: loose; straight: crooked; raw: cooked; lazy: hard-working; front: back
top: bottom
""")
PLURALS = rows("""
mouse: mice; child: children; foot: feet; tooth: teeth; goose: geese; man: men; woman: women
person: people
ox: oxen; leaf: leaves; knife: knives; wolf: wolves; sheep: sheep; fish: fish; deer: deer
cactus: cacti
cat: cats; dog: dogs; box: boxes; baby: babies; city: cities; bus: buses; potato: potatoes
story: stories
church: churches; life: lives; half: halves; loaf: loaves; thief: thieves; wife: wives; hero: heroes
""")
PASTS = rows("""
go: went; see: saw; eat: ate; drink: drank; run: ran; write: wrote; take: took; give: gave
come: came
buy: bought; bring: brought; think: thought; teach: taught; catch: caught; find: found; make: made
say: said
know: knew; grow: grew; fly: flew; swim: swam; sing: sang; begin: began; break: broke; speak: spoke
sleep: slept
feel: felt; keep: kept; leave: left; lose: lost; win: won; sit: sat; stand: stood; tell: told
sell: sold
read: read; build: built; send: sent; walk: walked; play: played; jump: jumped; be: was; have: had
do: did
""")
# English: French, Spanish, German
WORDS = """
cat: chat, gato, Katze; dog: chien, perro, Hund; house: maison, casa, Haus; water: eau, agua, Wasser
bread: pain, pan, Brot; milk: lait, leche, Milch; book: livre, libro, Buch; tree: arbre, árbol, Baum
sun: soleil, sol, Sonne; moon: lune, luna, Mond; red: rouge, rojo, rot; blue: bleu, azul, blau
green: vert, verde, grün; black: noir, negro, schwarz; white: blanc, blanco, weiß
one: un, uno, eins
two: deux, dos, zwei; three: trois, tres, drei; four: quatre, cuatro, vier; five: cinq, cinco, fünf
ten: dix, diez, zehn; hello: bonjour, hola, hallo; thank you: merci, gracias, danke
yes: oui, sí, ja
no: non, no, nein; goodbye: au revoir, adiós, auf Wiedersehen
please: s'il vous plaît, por favor, bitte
friend: ami, amigo, Freund; mother: mère, madre, Mutter; father: père, padre, Vater
school: école, escuela, Schule
apple: pomme, manzana, Apfel; cheese: fromage, queso, Käse; fish: poisson, pez, Fisch
bird: oiseau, pájaro, Vogel
horse: cheval, caballo, Pferd; night: nuit, noche, Nacht; day: jour, día, Tag
city: ville, ciudad, Stadt
flower: fleur, flor, Blume; fire: feu, fuego, Feuer; love: amour, amor, Liebe
snow: neige, nieve, Schnee
"""
TONGUES = ("French", "Spanish", "German")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
SEASONS = rows("""
spring: summer; summer: autumn; autumn: winter; winter: spring
""")

OPPOSITE = (
    "What is the opposite of {k}?",
    "What's the opposite of {k}?",
    "Give me the opposite of {k}.",
    "Which word means the opposite of {k}?",
    "opposite of {k}",
    "Tell me the opposite of the word {k}.",
)
PLURAL = (
    "What is the plural of {k}?",
    "What's the plural of {k}?",
    "Give me the plural of {k}.",
    "One {k}, two what?",
    "How do you write more than one {k}?",
)
PAST = (
    "What is the past tense of {k}?",
    "What's the past tense of {k}?",
    "Give me the past tense of {k}.",
    "How do you say {k} in the past?",
    "Put the verb {k} into the past tense.",
)
NEXT_DAY = (
    "What day comes after {k}?",
    "Which day comes after {k}?",
    "What is the day after {k}?",
    "If today is {k}, what day is tomorrow?",
    "Today is {k}. What is tomorrow?",
)
LAST_DAY = (
    "What day comes before {k}?",
    "Which day comes before {k}?",
    "What is the day before {k}?",
    "If today is {k}, what day was yesterday?",
    "Today is {k}. What was yesterday?",
)
NEXT_MONTH = (
    "What month comes after {k}?",
    "Which month comes after {k}?",
    "What is the month after {k}?",
    "Which month follows {k}?",
)
LAST_MONTH = (
    "What month comes before {k}?",
    "Which month comes before {k}?",
    "What is the month before {k}?",
    "Name the month before {k}.",
)
MONTH_NUMBER = (
    "Which month of the year is {k}?",
    "What number is the month of {k}?",
    "What is the number of the month {k}?",
    "Tell me the number of the month {k}.",
)
MONTH_LENGTH = (
    "How many days does {k} have?",
    "How many days are in {k}?",
    "How long is the month of {k}?",
    "What is the number of days in {k}?",
)
NEXT_LETTER = (
    "Which letter comes after {k}?",
    "What letter comes after {k}?",
    "What is the letter after {k}?",
    "In the alphabet, what follows {k}?",
    "Name the letter after {k}.",
)
NEXT_SEASON = (
    "Which season comes after {k}?",
    "What season follows {k}?",
    "What comes after {k}?",
    "Name the season after {k}.",
)


def translations() -> list[Fact]:
    """Return each word in each foreign language, and back."""
    made = []
    split = {k: v.split(", ") for k, v in rows(WORDS).items()}
    for i, tongue in enumerate(TONGUES):
        table = {k: v[i] for k, v in split.items()}
        asked = (
            f"How do you say {{k}} in {tongue}?",
            f"What is {{k}} in {tongue}?",
            f"Translate {{k}} into {tongue}.",
            f"What is the {tongue} word for {{k}}?",
            f"How do I say {{k}} in {tongue}?",
        )
        answer = f"{{K}} in {tongue} is {{v}}."
        for fact in facts_from("translation", table, asked, answer):
            name = f"{tongue}/{fact.name}"
            made.append(Fact(fact.kind, name, fact.prompts, fact.answer, fact.short))
        back = (
            f"What does the {tongue} word {{v}} mean?",
            f"What is {{v}} in English? It is {tongue}.",
            f"Translate the {tongue} word {{v}} into English.",
            f"What does {{v}} mean in {tongue}?",
        )
        for fact in facts_from(
            "translation_back", table, back, f"The {tongue} word {{v}} means {{k}}."
        ):
            name, short = f"{tongue}/{fact.name}", fact.name.capitalize()
            made.append(Fact(fact.kind, name, fact.prompts, fact.answer, short))
    return made


def calendar() -> list[Fact]:
    """Return what follows what among days, months, seasons and letters."""
    day = dict(zip(DAYS, DAYS[1:] + DAYS[:1], strict=True))
    month = dict(zip(MONTHS, MONTHS[1:] + MONTHS[:1], strict=True))
    letters = [chr(c) for c in range(ord("A"), ord("Z") + 1)]
    letter = dict(zip(letters, letters[1:], strict=False))
    number = {m: str(i + 1) for i, m in enumerate(MONTHS)}
    length = {m: str(n) for m, n in zip(MONTHS, MONTH_DAYS, strict=True)}
    made = facts_from("day", day, NEXT_DAY, "The day after {k} is {v}.")
    made += facts_from(
        "day_before", {v: k for k, v in day.items()}, LAST_DAY, "The day before {k} is {v}."
    )
    made += facts_from("month", month, NEXT_MONTH, "The month after {k} is {v}.")
    made += facts_from(
        "month_before", {v: k for k, v in month.items()}, LAST_MONTH, "The month before {k} is {v}."
    )
    made += facts_from("month_number", number, MONTH_NUMBER, "{k} is month number {v}.")
    made += facts_from("month_length", length, MONTH_LENGTH, "{k} has {v} days.")
    made += facts_from("letter", letter, NEXT_LETTER, "The letter after {k} is {v}.")
    made += facts_from("season", SEASONS, NEXT_SEASON, "The season after {k} is {v}.")
    return made


def facts() -> list[Fact]:
    """Return every fact about words and the calendar."""
    made = facts_from("opposite", OPPOSITES, OPPOSITE, "The opposite of {k} is {v}.")
    made += facts_from("plural", PLURALS, PLURAL, "The plural of {k} is {v}.")
    made += facts_from("past_tense", PASTS, PAST, "The past tense of {k} is {v}.")
    return made + translations() + calendar()
