"""Who made what: books, paintings, music, inventions, discoveries; and games, tools, jobs."""

from __future__ import annotations

from tools.quire_tiny.question import Fact, facts_from, rows

BOOKS = rows("""
Romeo and Juliet: William Shakespeare; Hamlet: William Shakespeare; Macbeth: William Shakespeare
Don Quixote: Miguel de Cervantes; War and Peace: Leo Tolstoy; Anna Karenina: Leo Tolstoy
Crime and Punishment: Fyodor Dostoevsky; Pride and Prejudice: Jane Austen; Emma: Jane Austen
Oliver Twist: Charles Dickens; A Christmas Carol: Charles Dickens
Great Expectations: Charles Dickens
Moby Dick: Herman Melville; Frankenstein: Mary Shelley; Dracula: Bram Stoker; The Odyssey: Homer
The Iliad: Homer
Jane Eyre: Charlotte Bronte; Wuthering Heights: Emily Bronte; Alice in Wonderland: Lewis Carroll
Treasure Island: Robert Louis Stevenson; Robinson Crusoe: Daniel Defoe
Gulliver's Travels: Jonathan Swift
The Little Prince: Antoine de Saint-Exupery; Les Miserables: Victor Hugo
Faust: Johann Wolfgang von Goethe
The Divine Comedy: Dante; The Metamorphosis: Franz Kafka; Ulysses: James Joyce
The Hobbit: J. R. R. Tolkien
The Lord of the Rings: J. R. R. Tolkien; Animal Farm: George Orwell; The Time Machine: H. G. Wells
The Jungle Book: Rudyard Kipling; Peter Pan: J. M. Barrie; Pinocchio: Carlo Collodi
The Raven: Edgar Allan Poe
Tom Sawyer: Mark Twain; The Three Musketeers: Alexandre Dumas
Around the World in Eighty Days: Jules Verne
The Ugly Duckling: Hans Christian Andersen; The Old Man and the Sea: Ernest Hemingway
Heidi: Johanna Spyri
Sherlock Holmes: Arthur Conan Doyle; Pippi Longstocking: Astrid Lindgren; Candide: Voltaire
""")
PAINTINGS = rows("""
the Mona Lisa: Leonardo da Vinci; the Last Supper: Leonardo da Vinci
the Starry Night: Vincent van Gogh
the Sunflowers: Vincent van Gogh; the Scream: Edvard Munch; Guernica: Pablo Picasso
the Night Watch: Rembrandt
the Birth of Venus: Sandro Botticelli; the Girl with a Pearl Earring: Johannes Vermeer
the Kiss: Gustav Klimt
the Water Lilies: Claude Monet; the Persistence of Memory: Salvador Dali
the School of Athens: Raphael
the ceiling of the Sistine Chapel: Michelangelo; the Great Wave: Hokusai
Las Meninas: Diego Velazquez
""")
MUSIC = rows("""
The Magic Flute: Mozart; The Four Seasons: Vivaldi; Swan Lake: Tchaikovsky
The Nutcracker: Tchaikovsky
Ode to Joy: Beethoven; the Moonlight Sonata: Beethoven; Carmen: Bizet; Aida: Verdi
The Barber of Seville: Rossini
the Brandenburg Concertos: Bach; The Messiah: Handel; Bolero: Ravel; The Planets: Holst
The Blue Danube: Strauss
Peter and the Wolf: Prokofiev; The Firebird: Stravinsky; Clair de Lune: Debussy; The Ring: Wagner
""")
INVENTIONS = rows("""
the telephone: Alexander Graham Bell; the light bulb: Thomas Edison
the printing press: Johannes Gutenberg
the steam engine: James Watt; dynamite: Alfred Nobel; the World Wide Web: Tim Berners-Lee
the radio: Guglielmo Marconi; the aeroplane: the Wright brothers; braille: Louis Braille
the battery: Alessandro Volta
the diesel engine: Rudolf Diesel; the telegraph code of dots and dashes: Samuel Morse
the motor car: Karl Benz
the Python language: Guido van Rossum; the C language: Dennis Ritchie; Linux: Linus Torvalds
the lightning rod: Benjamin Franklin; the barometer: Evangelista Torricelli
the hot air balloon: the Montgolfier brothers
""")
DISCOVERIES = rows("""
penicillin: Alexander Fleming; radium: Marie Curie; gravity: Isaac Newton
the theory of relativity: Albert Einstein
evolution by natural selection: Charles Darwin; the moons of Jupiter: Galileo Galilei
X-rays: Wilhelm Roentgen
the laws of heredity: Gregor Mendel; the periodic table: Dmitri Mendeleev
the electron: J. J. Thomson
the vaccine against smallpox: Edward Jenner; the planet Uranus: William Herschel
the atomic nucleus: Ernest Rutherford
the laws of planetary motion: Johannes Kepler; the sea route to India: Vasco da Gama
the double helix of DNA: Watson and Crick; the vaccine against rabies: Louis Pasteur
""")
FIRSTS = rows("""
person on the Moon: Neil Armstrong; person in space: Yuri Gagarin
woman in space: Valentina Tereshkova
president of the United States: George Washington; emperor of Rome: Augustus
programmer: Ada Lovelace
woman to win a Nobel Prize: Marie Curie; ship to sail around the world: the Victoria
animal in orbit: the dog Laika
""")
JOBS = rows("""
teaches children: a teacher; bakes bread: a baker; flies a plane: a pilot
puts out fires: a firefighter
grows crops: a farmer; repairs cars: a mechanic; treats sick people: a doctor
treats sick animals: a vet
cuts hair: a hairdresser; writes books: an author; paints pictures: a painter
builds houses: a builder
catches fish: a fisherman; cooks food in a restaurant: a chef; looks after teeth: a dentist
delivers letters: a postman
designs buildings: an architect; plays music: a musician; sails ships: a sailor
writes programs: a programmer
repairs pipes: a plumber; makes clothes: a tailor; travels into space: an astronaut
studies the stars: an astronomer
sells meat: a butcher; takes photographs: a photographer; works with wood: a carpenter
keeps bees: a beekeeper
""")
TOOLS = rows("""
cut paper: scissors; drive in a nail: a hammer; measure temperature: a thermometer
tell the time: a clock
see far away stars: a telescope; see very small things: a microscope; sweep the floor: a broom
dig a hole: a spade
open a lock: a key; eat soup: a spoon; cut bread: a knife; write on paper: a pen
stay dry in the rain: an umbrella
find north: a compass; measure weight: a scale; measure length: a ruler; brush teeth: a toothbrush
sew clothes: a needle
dry hair: a towel; boil water: a kettle; turn a screw: a screwdriver; chop wood: an axe
take photographs: a camera
""")

WROTE = (
    "Who wrote {k}?",
    "Who is the author of {k}?",
    "Which author wrote {k}?",
    "Tell me who wrote {k}.",
    "By whom is {k}?",
    "Do you know who wrote {k}?",
)
PAINTED = (
    "Who painted {k}?",
    "Which artist painted {k}?",
    "Tell me who painted {k}.",
    "Who is the painter of {k}?",
    "Do you know who painted {k}?",
)
COMPOSED = (
    "Who composed {k}?",
    "Which composer wrote {k}?",
    "Who is the composer of {k}?",
    "Tell me who composed {k}.",
    "Do you know who composed {k}?",
)
INVENTED = (
    "Who invented {k}?",
    "Who is the inventor of {k}?",
    "Tell me who invented {k}.",
    "Which inventor gave us {k}?",
    "Do you know who invented {k}?",
)
DISCOVERED = (
    "Who discovered {k}?",
    "Who is the discoverer of {k}?",
    "Tell me who discovered {k}.",
    "To whom do we owe {k}?",
    "Do you know who discovered {k}?",
)
FIRST = (
    "Who was the first {k}?",
    "Tell me who was the first {k}.",
    "Name the first {k}.",
    "Do you know the first {k}?",
    "What was the name of the first {k}?",
)
JOB = (
    "Who {k}?",
    "What do you call someone who {k}?",
    "What is the job of a person who {k}?",
    "Which worker {k}?",
    "Name the person who {k}.",
)
TOOL = (
    "What do you use to {k}?",
    "What do I need to {k}?",
    "Which tool is used to {k}?",
    "With what do you {k}?",
    "Name something to {k} with.",
)


def facts() -> list[Fact]:
    """Return every fact about people, works and things."""
    made = facts_from("author", BOOKS, WROTE, "{k} was written by {v}.")
    made += facts_from("painter", PAINTINGS, PAINTED, "{K} was painted by {v}.")
    made += facts_from("composer", MUSIC, COMPOSED, "{K} was composed by {v}.")
    made += facts_from("inventor", INVENTIONS, INVENTED, "{K} was invented by {v}.")
    made += facts_from("discoverer", DISCOVERIES, DISCOVERED, "{K} was discovered by {v}.")
    made += facts_from("first", FIRSTS, FIRST, "The first {k} was {v}.")
    made += facts_from("job", JOBS, JOB, "{V} {k}.")
    made += facts_from("tool", TOOLS, TOOL, "You use {v} to {k}.")
    return made
