"""In how many words each fact of the sample world can be told and asked: relations as data.

A relation has statements, questions and yes/no checks. `{s}` is the subject, `{o}` the object; sums have `{a}` and
`{b}`, the two numbers of the subject. Two rules keep held-out questions honest, and tests assert both: no form, up to
its object, is contained in another one; and the first statement is the sentence that conversations answer with,
so it is never held out and no question of the evaluation is built on it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """One kind of fact. `kind` is the kind of its subject: person, place, thing, word or sum."""

    name: str
    kind: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    checks: tuple[str, ...]  # empty: never asked as yes or no

    @property
    def completions(self) -> tuple[str, ...]:
        """The statements that can be cut before their object, the answering sentence excepted."""
        return tuple(form for form in self.statements[1:] if form.endswith("{o}."))


_PERSON = (
    Relation(
        "home",
        "person",
        (
            "{s} lives in {o}.",
            "The home of {s} is in {o}.",
            "{s} has a house in {o}.",
            "Letters for {s} are sent to {o}.",
            "After a long journey {s} returns to {o}.",
            "In {o} everybody has met {s}.",
        ),
        (
            "Where does {s} live?",
            "In which town is the home of {s}?",
            "Which town does {s} live in?",
            "To which town are letters for {s} sent?",
            "Where is the house of {s}?",
        ),
        ("Does {s} live in {o}?", "Is the home of {s} in {o}?", "Does {s} have a house in {o}?"),
    ),
    Relation(
        "trade",
        "person",
        (
            "{s} works as a {o}.",
            "By trade {s} is a {o}.",
            "{s} earns a living as a {o}.",
            "The work of {s} is that of a {o}.",
            "For many years {s} has been a {o}.",
            "People who need a {o} call {s}.",
        ),
        (
            "What is the trade of {s}?",
            "What does {s} do for a living?",
            "What does {s} work as?",
            "What work has {s} done for many years?",
            "How does {s} earn money?",
        ),
        ("Is {s} a {o}?", "Does {s} work as a {o}?", "Is the work of {s} that of a {o}?"),
    ),
    Relation(
        "pet",
        "person",
        (
            "{s} keeps a {o}.",
            "The pet of {s} is a {o}.",
            "Every morning {s} feeds a {o}.",
            "{s} is often seen with a {o}.",
            "The animal that {s} loves is a {o}.",
            "A {o} follows {s} everywhere.",
        ),
        (
            "Which animal does {s} keep?",
            "What pet does {s} have?",
            "Which animal does {s} feed every morning?",
            "What kind of animal follows {s}?",
            "Which animal is loved by {s}?",
        ),
        ("Does {s} keep a {o}?", "Is the pet of {s} a {o}?", "Does {s} feed a {o} every morning?"),
    ),
    Relation(
        "colour",
        "person",
        (
            "{s} likes the colour {o}.",
            "The favourite colour of {s} is {o}.",
            "{s} always dresses in {o}.",
            "No colour pleases {s} more than {o}.",
            "{s} painted the front door {o}.",
            "It was {o} that {s} chose for the walls.",
        ),
        (
            "Which colour does {s} like?",
            "What is the favourite colour of {s}?",
            "In which colour does {s} dress?",
            "Which colour pleases {s} most?",
            "What colour is the front door of {s}?",
        ),
        ("Does {s} like the colour {o}?", "Is the favourite colour of {s} {o}?", "Does {s} dress in {o}?"),
    ),
    Relation(
        "food",
        "person",
        (
            "{s} likes to eat {o}.",
            "The favourite food of {s} is {o}.",
            "For supper {s} wants {o}.",
            "Nothing tastes better to {s} than {o}.",
            "To every feast {s} brings {o}.",
            "Give {o} to {s} and you make a friend.",
        ),
        (
            "What does {s} like to eat?",
            "What is the favourite food of {s}?",
            "What does {s} want for supper?",
            "What tastes best to {s}?",
            "Which food does {s} bring to a feast?",
        ),
        ("Does {s} like to eat {o}?", "Is the favourite food of {s} {o}?", "Does {s} want {o} for supper?"),
    ),
    Relation(
        "instrument",
        "person",
        (
            "{s} plays the {o}.",
            "In the evening {s} practises the {o}.",
            "At every dance {s} performs on the {o}.",
            "The instrument of {s} is the {o}.",
            "As a child {s} learned the {o}.",
            "The {o} is what {s} takes along to sing.",
        ),
        (
            "What does {s} play?",
            "Which instrument does {s} practise?",
            "On what does {s} perform at a dance?",
            "What is the instrument of {s}?",
            "Which instrument did {s} learn as a child?",
        ),
        ("Does {s} play the {o}?", "Is the instrument of {s} the {o}?", "Does {s} practise the {o}?"),
    ),
    Relation(
        "friend",
        "person",
        (
            "{s} is a close friend of {o}.",
            "The best friend of {s} is {o}.",
            "{s} trusts nobody more than {o}.",
            "On holidays {s} visits {o}.",
            "{s} shares every secret with {o}.",
            "When {s} needs help, it comes from {o}.",
        ),
        (
            "Who is the best friend of {s}?",
            "Whom does {s} trust most?",
            "Whom does {s} visit on holidays?",
            "With whom does {s} share secrets?",
            "Who helps {s}?",
        ),
        ("Is the best friend of {s} {o}?", "Does {s} trust {o} most?", "Does {s} visit {o} on holidays?"),
    ),
)

_PLACE = (
    Relation(
        "region",
        "place",
        (
            "{s} lies in the {o} of the island.",
            "On the map {s} is in the {o}.",
            "The road to {s} leads {o}.",
            "To see {s}, one travels {o}.",
            "Sailors find {s} in the {o}.",
        ),
        (
            "In which part of the island is {s}?",
            "Where does {s} lie?",
            "In what direction is {s}?",
            "Where is {s} on the map?",
            "Which way does the road to {s} lead?",
        ),
        ("Is {s} in the {o}?", "Does the road to {s} lead {o}?", "Does {s} lie in the {o}?"),
    ),
    Relation(
        "product",
        "place",
        (
            "{s} is known for its {o}.",
            "The market of {s} sells {o}.",
            "Ships leave {s} loaded with {o}.",
            "The wealth of {s} comes from {o}.",
            "Merchants travel to {s} to buy {o}.",
            "The best {o} comes from {s}.",
        ),
        (
            "What is {s} known for?",
            "What is sold on the market of {s}?",
            "What do ships carry away from {s}?",
            "What made {s} wealthy?",
            "What do merchants buy in {s}?",
        ),
        ("Is {s} known for its {o}?", "Does the market of {s} sell {o}?", "Do merchants buy {o} in {s}?"),
    ),
    Relation(
        "landmark",
        "place",
        (
            "In the middle of {s} stands a {o}.",
            "Visitors to {s} admire a {o}.",
            "What everyone remembers of {s} is a {o}.",
            "The people of {s} are proud of a {o}.",
            "From far away {s} is recognised by a {o}.",
        ),
        (
            "What stands in the middle of {s}?",
            "What do visitors to {s} admire?",
            "What does everyone remember of {s}?",
            "What are the people of {s} proud of?",
            "By what is {s} recognised from far away?",
        ),
        ("Is there a {o} in {s}?", "Do visitors to {s} admire a {o}?", "Are the people of {s} proud of a {o}?"),
    ),
    Relation(
        "mayor",
        "place",
        (
            "The mayor of {s} is {o}.",
            "{s} is led by {o}.",
            "The people of {s} elected {o}.",
            "The council of {s} listens to {o}.",
            "The keys of {s} are held by {o}.",
            "It is {o} who speaks for {s}.",
        ),
        (
            "Who is the mayor of {s}?",
            "Who leads {s}?",
            "Whom did the people of {s} elect?",
            "Whom does the council of {s} listen to?",
            "Who holds the keys of {s}?",
        ),
        ("Is {o} the mayor of {s}?", "Is {s} led by {o}?", "Did the people of {s} elect {o}?"),
    ),
)

_THING = (
    Relation(
        "material",
        "thing",
        (
            "The {s} is made of {o}.",
            "A master formed the {s} from {o}.",
            "The {s} was built out of {o}.",
            "Touch the {s} and you feel {o}.",
            "The material of the {s} is {o}.",
        ),
        (
            "What is the {s} made of?",
            "From what was the {s} formed?",
            "Out of what was the {s} built?",
            "What do you feel when you touch the {s}?",
            "What is the material of the {s}?",
        ),
        ("Is the {s} made of {o}?", "Was the {s} formed from {o}?", "Is the material of the {s} {o}?"),
    ),
    Relation(
        "shade",
        "thing",
        (
            "The {s} is painted {o}.",
            "The colour of the {s} is {o}.",
            "In daylight the {s} looks {o}.",
            "Long ago the {s} was dyed {o}.",
            "Everyone can see that the {s} is {o}.",
        ),
        (
            "What colour is the {s}?",
            "What is the colour of the {s}?",
            "How does the {s} look in daylight?",
            "Which colour was the {s} dyed?",
            "In which colour is the {s} painted?",
        ),
        ("Is the {s} painted {o}?", "Does the {s} look {o}?", "Is the colour of the {s} {o}?"),
    ),
    Relation(
        "owner",
        "thing",
        (
            "The {s} belongs to {o}.",
            "The owner of the {s} is {o}.",
            "Whoever wants the {s} must ask {o}.",
            "The {s} was bought by {o}.",
            "The {s} is the property of {o}.",
            "It was {o} who paid for the {s}.",
        ),
        (
            "Who owns the {s}?",
            "Whom does the {s} belong to?",
            "Who is the owner of the {s}?",
            "Who bought the {s}?",
            "Whom must one ask for the {s}?",
        ),
        ("Does the {s} belong to {o}?", "Is {o} the owner of the {s}?", "Was the {s} bought by {o}?"),
    ),
    Relation(
        "room",
        "thing",
        (
            "The {s} is kept in the {o}.",
            "You will find the {s} in the {o}.",
            "The place of the {s} is the {o}.",
            "Somebody left the {s} in the {o}.",
            "To fetch the {s}, walk to the {o}.",
        ),
        (
            "Where is the {s} kept?",
            "Where can you find the {s}?",
            "In which room is the {s}?",
            "Where did somebody leave the {s}?",
            "Where do you go to fetch the {s}?",
        ),
        ("Is the {s} kept in the {o}?", "Is the place of the {s} the {o}?", "Did somebody leave the {s} in the {o}?"),
    ),
)

_PUZZLES = (
    Relation(
        "spelling",
        "word",
        (
            "The word {s} is spelled {o}.",
            "Letter by letter, {s} is {o}.",
            "To write {s}, put down {o}.",
            "Spell {s} slowly and you get {o}.",
            "The letters of {s} are {o}.",
        ),
        (
            "How is the word {s} spelled?",
            "How do you spell {s}?",
            "Which letters make up {s}?",
            "Can you spell {s}?",
            "How do you write {s} letter by letter?",
        ),
        (),
    ),
    Relation(
        "initial",
        "word",
        (
            "The first letter of {s} is {o}.",
            "The word {s} begins with {o}.",
            "In a dictionary {s} is listed under {o}.",
            "Whoever writes {s} starts with {o}.",
            "At the head of {s} stands {o}.",
        ),
        (
            "Which letter does {s} begin with?",
            "What is the first letter of {s}?",
            "Under which letter is {s} listed?",
            "With which letter does one start to write {s}?",
            "Which letter stands at the head of {s}?",
        ),
        (),
    ),
    Relation(
        "plus",
        "sum",
        (
            "{a} plus {b} is {o}.",
            "{a} + {b} = {o}.",
            "Adding {b} to {a} gives {o}.",
            "{a} and {b} together make {o}.",
            "Counting on from {a} by {b} leads to {o}.",
        ),
        (
            "What is {a} plus {b}?",
            "How much is {a} + {b}?",
            "What do {a} and {b} add up to?",
            "What is the sum of {a} and {b}?",
            "I have {a} shells and find {b} more. How many are there?",
        ),
        ("Is {a} plus {b} equal to {o}?", "Do {a} and {b} make {o}?"),
    ),
    Relation(
        "minus",
        "sum",
        (
            "{a} minus {b} is {o}.",
            "{a} - {b} = {o}.",
            "Taking {b} from {a} leaves {o}.",
            "{a} less {b} makes {o}.",
            "Counting back from {a} by {b} leads to {o}.",
        ),
        (
            "What is {a} minus {b}?",
            "How much is {a} - {b}?",
            "What is left when {b} is taken from {a}?",
            "What is the difference of {a} and {b}?",
            "I have {a} shells and lose {b}. How many are left?",
        ),
        ("Is {a} minus {b} equal to {o}?", "Does taking {b} from {a} leave {o}?"),
    ),
)

RELATIONS: dict[str, Relation] = {relation.name: relation for relation in (*_PERSON, *_PLACE, *_THING, *_PUZZLES)}
