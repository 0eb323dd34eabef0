"""What the built-in VLMs can say and be asked, as tables; from them come the vocabulary file and the training text.

The true sentence for a scene and a topic is the first of the topic's sentences whose conditions hold, so the tables
are ordered from the special to the general. Answers to questions of permission carry no yes or no: a negated
question ("is it not safe to overtake") then cannot turn the answer round.
"""

from __future__ import annotations

from dataclasses import dataclass

from triptych.contract import Advice, Hazard, Light, Road, SceneAdvice, Weather
from triptych.contract.result import COUNTED, MOST_COUNTED, NOT_COUNTED
from triptych.language.config import Sentence, VocabularyFile
from triptych.language.grammar import Grammar, fill, holds
from triptych.language.tokeniser import (
    CONTROLS,
    COUNT_TOKENS,
    FIELDS,
    SLOT,
    Vocabulary,
    count_token,
    field_token,
    normalise,
)

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine or more")
KINDS = {"vehicles": "vehicle", "two_wheelers": "two wheeler", "pedestrians": "pedestrian"}
assert len(NUMBERS) == MOST_COUNTED + 1

PHRASES: dict[str, str] = {
    "road:unknown": "unknown road",
    "road:highway": "highway",
    "road:rural": "rural road",
    "road:urban": "city street",
    "road:crossing": "crossing",
    "road:works": "road works",
    "weather:unknown": "unknown weather",
    "weather:clear": "clear weather",
    "weather:rain": "rain",
    "weather:fog": "fog",
    "light:unknown": "unknown light",
    "light:day": "daylight",
    "light:dusk": "dusk",
    "light:night": "night",
    "hazard:lead_vehicle": "vehicle ahead",
    "hazard:lead_vehicle_braking": "vehicle ahead braking",
    "hazard:pedestrian_near_lane": "pedestrian near the lane",
    "hazard:two_wheeler": "two wheeler ahead",
    "hazard:red_light": "red traffic light",
    "hazard:works": "works on the road",
    "hazard:low_visibility": "low visibility",
    "hazard:dense_traffic": "dense traffic",
    "advice:proceed": "go on",
    "advice:caution": "drive with caution",
    "advice:slow_down": "slow down",
    "advice:prepare_to_stop": "prepare to stop",
    "advice:stop": "stop",
    **{
        count_token(field, number): f"{word} {kind}{'s' if number > 1 else ''}"
        for field, kind in KINDS.items()
        for number, word in enumerate(NUMBERS)
    },
}

SEVERITY = (
    Hazard.RED_LIGHT,
    Hazard.PEDESTRIAN_NEAR_LANE,
    Hazard.LEAD_VEHICLE_BRAKING,
    Hazard.WORKS,
    Hazard.TWO_WHEELER,
    Hazard.LOW_VISIBILITY,
    Hazard.DENSE_TRAFFIC,
    Hazard.LEAD_VEHICLE,
)
"""Which of several hazards a sentence names: the first of these."""


@dataclass(frozen=True)
class Topic:
    """Something to talk about: what may be asked (the last question is kept from training) and what is said."""

    name: str
    questions: tuple[str, ...]
    sentences: tuple[Sentence, ...]


def _say(words: str, *when: str) -> Sentence:
    return Sentence(words=words, when=when)


def _presence(name: str, token: str, yes: str, no: str, *questions: str) -> Topic:
    return Topic(name, questions, (_say(f"yes, {yes}", token), _say(f"no, {no}", f"!{token}")))


TOPICS: tuple[Topic, ...] = (
    Topic(
        "standing",
        (),
        (
            _say("the scene can not be seen, {advice}", "road:unknown"),
            _say("{road} in {weather} and {light}, {hazard}, {advice}", "hazard:*"),
            _say("{road} in {weather} and {light}, no hazard seen, {advice}", "!hazard:*"),
        ),
    ),
    Topic(
        "weather",
        (
            "what is the weather",
            "how is the weather",
            "which weather is it",
            "tell me the weather",
            "what weather do you see",
            "what is the weather like",
            "how is the weather now",
        ),
        (_say("the weather is {weather}"),),
    ),
    _presence(
        "rain",
        "weather:rain",
        "it rains",
        "it does not rain",
        "is it raining",
        "does it rain",
        "is there rain",
        "do you see rain",
        "is the road wet",
        "is there rain now",
    ),
    _presence(
        "fog",
        "weather:fog",
        "there is fog",
        "there is no fog",
        "is there fog",
        "is it foggy",
        "do you see fog",
        "is there any fog ahead",
        "is there fog now",
    ),
    Topic(
        "light",
        (
            "what is the light",
            "how is the light",
            "what time of day is it",
            "is it day or night",
            "how bright is it",
            "what is the light like",
            "how is the light now",
        ),
        (_say("the light is {light}"),),
    ),
    _presence(
        "night",
        "light:night",
        "it is night",
        "it is not night",
        "is it night",
        "is it dark",
        "is it dark outside",
        "do we drive at night",
        "is it night now",
    ),
    Topic(
        "road",
        (
            "what road is this",
            "where are we",
            "which road is this",
            "what kind of road is this",
            "on which road do we drive",
            "where do we drive",
            "what kind of road do you see",
        ),
        (_say("this is {road}"),),
    ),
    Topic(
        "ahead",
        (
            "what is ahead",
            "what do you see",
            "what do you see ahead",
            "what is in front of us",
            "which hazard is ahead",
            "is there any hazard",
            "are there hazards",
            "what is there ahead of us",
        ),
        (_say("{hazard}", "hazard:*"), _say("no hazard seen", "!hazard:*")),
    ),
    _presence(
        "pedestrian",
        "hazard:pedestrian_near_lane",
        "pedestrian near the lane",
        "no pedestrian seen near the lane",
        "is there a pedestrian near the lane",
        "is there a pedestrian",
        "do you see a pedestrian",
        "is there a person near the road",
        "are there pedestrians",
        "is a person ahead",
        "do you see people",
        "do you see a pedestrian near the lane",
    ),
    _presence(
        "two_wheeler",
        "hazard:two_wheeler",
        "two wheeler ahead",
        "no two wheeler seen",
        "is there a two wheeler",
        "is there a bicycle",
        "do you see a cyclist",
        "is there a motorcycle ahead",
        "is a cyclist ahead",
        "is there a cyclist",
    ),
    _presence(
        "red_light",
        "hazard:red_light",
        "red traffic light",
        "no red traffic light seen",
        "is the traffic light red",
        "is the light red",
        "is there a red light",
        "do you see a red traffic light",
        "must we stop at the light",
        "is there a red traffic light ahead",
    ),
    Topic(
        "lead",
        (
            "is there a vehicle ahead",
            "is there a car ahead",
            "do you see a car",
            "is a car in front of us",
            "is there a vehicle in front",
            "do you see a vehicle ahead",
        ),
        (
            _say("yes, vehicle ahead braking", "hazard:lead_vehicle_braking"),
            _say("yes, vehicle ahead", "hazard:lead_vehicle"),
            _say("no vehicle seen close ahead", "!hazard:lead_vehicle", "!hazard:lead_vehicle_braking"),
        ),
    ),
    _presence(
        "braking",
        "hazard:lead_vehicle_braking",
        "vehicle ahead braking",
        "no vehicle seen braking",
        "is the vehicle ahead braking",
        "is the car ahead braking",
        "does the car in front brake",
        "is a car braking",
        "do you see brake lights",
        "does the vehicle ahead brake",
    ),
    _presence(
        "works",
        "hazard:works",
        "works on the road",
        "no works seen",
        "are there road works",
        "is there a work zone",
        "do you see works",
        "are there works ahead",
        "are there works on the road",
    ),
    _presence(
        "visibility",
        "hazard:low_visibility",
        "low visibility",
        "visibility is not low",
        "is the visibility low",
        "how is the visibility",
        "can you see well",
        "is it hard to see",
        "how well can you see",
    ),
    _presence(
        "traffic",
        "hazard:dense_traffic",
        "dense traffic",
        "no dense traffic seen",
        "is there dense traffic",
        "how is the traffic",
        "is there much traffic",
        "are there many cars",
        "is the traffic dense",
    ),
    Topic(
        "count",
        (
            "how many vehicles do you see",
            "how many cars are there",
            "how many people do you see",
            "count the vehicles",
            "how many two wheelers are there",
            "how many pedestrians are there",
            "how many vehicles are there",
        ),
        (_say("{vehicles}, {two_wheelers}, {pedestrians}"),),
    ),
    Topic(
        "overtake",
        (
            "may i overtake",
            "may we overtake",
            "can i overtake",
            "is it safe to overtake",
            "is it not safe to overtake",
            "should i pass the car ahead",
            "may i change the lane",
            "can we overtake now",
        ),
        (
            _say("do not overtake, {hazard}", "hazard:*"),
            _say("do not overtake at a crossing", "road:crossing", "!hazard:*"),
            _say("do not overtake in road works", "road:works", "!hazard:*"),
            _say("do not overtake, the scene can not be seen", "road:unknown", "!hazard:*"),
            _say("only the driver can tell, no hazard seen", "!hazard:*"),
        ),
    ),
    Topic(
        "speed",
        (
            "how fast may i drive",
            "how fast can we go",
            "what speed is safe",
            "may i drive faster",
            "can we speed up",
            "should i slow down",
            "how fast should we drive",
        ),
        (
            _say("{advice}, {hazard}", "hazard:*"),
            _say("not above the limit, {advice}", "!hazard:*"),
        ),
    ),
    Topic(
        "advice",
        (
            "what should i do",
            "what is your advice",
            "what do you advise",
            "what should we do now",
            "may i go on",
            "what shall we do",
        ),
        (_say("{advice}"),),
    ),
    Topic(
        "why",
        ("why", "why is that", "what is the reason", "why should i do that", "for what reason"),
        (_say("because of {hazard}", "hazard:*"), _say("because no hazard is seen", "!hazard:*")),
    ),
    Topic("other", (), (_say("i do not know that"),)),
)
"""``standing`` is the empty question; ``other`` is any question that makes no sense to the model."""

STANDING, OTHER = TOPICS[0], TOPICS[-1]
ASKED = TOPICS[1:-1]

FILLERS = ("please", "tell me", "now", "quickly", "and", "so", "well", "then")
"""Words put before or after a question in training, so that they do not matter."""
EXTRA_WORDS = (
    "the a an it of to in on at is are was do does can will you we me my our your this that there here not or any which"
    " who when where how what left right lane red green car truck bus child dog tree sun snow ice wind name old song"
    " today tomorrow home far near big small first last good bad price music open close window door radio warm cold"
)
"""Words a senseless question is made of in training, beside those of real ones."""
MAX_QUESTION_TOKENS = 24


def vocabulary_file() -> VocabularyFile:
    """The vocabulary built from the tables; deterministic."""
    fields = [field_token(name, value) for name, kind in FIELDS.items() for value in kind]
    words: set[str] = {","}
    for text in (*PHRASES.values(), *FILLERS, EXTRA_WORDS):
        words.update(normalise(text))
    for topic in TOPICS:
        for text in topic.questions:
            words.update(normalise(text))
        for sentence in topic.sentences:
            words.update(normalise(SLOT.sub(" ", sentence.words)))
    return VocabularyFile(
        format="triptych-vocabulary-1",
        tokens=(*CONTROLS, *fields, *COUNT_TOKENS, *sorted(words)),
        phrases=PHRASES,
        sentences=tuple(sentence for topic in TOPICS for sentence in topic.sentences),
        max_question_tokens=MAX_QUESTION_TOKENS,
    )


def worst(hazards: tuple[Hazard, ...]) -> Hazard | None:
    """The hazard a sentence names."""
    return next((hazard for hazard in SEVERITY if hazard in hazards), None)


@dataclass(frozen=True)
class Truth:
    """What a scene is; a field that is None is not known (a real picture labelled by hand)."""

    road: Road | None = None
    weather: Weather | None = None
    light: Light | None = None
    hazards: tuple[Hazard, ...] | None = None
    advice: Advice | None = None
    counts: tuple[int | None, int | None, int | None] = (None, None, None)
    """Of :data:`COUNTED`; up to ``MOST_COUNTED``."""

    @property
    def complete(self) -> bool:
        """Whether every field is known."""
        return None not in (self.road, self.weather, self.light, *self.counts, self.hazards, self.advice)


def answer_tokens(vocabulary: Vocabulary, truth: Truth, topic: Topic) -> tuple[list[int], list[bool]]:
    """The tokens of the true answer, ``<eos>`` included, and which of them are known (True: to be learnt).

    After an unknown field nothing more is known, since the sequence cannot be continued truthfully; an unknown road
    or weather before a known light is stood in for by the UNKNOWN value and not learnt.
    """
    tokens: list[int] = []
    known: list[bool] = []

    def put(token: str, sure: bool) -> None:
        tokens.append(vocabulary.index[token])
        known.append(sure)

    put(field_token("road", truth.road if truth.road is not None else Road.UNKNOWN), truth.road is not None)
    put(
        field_token("weather", truth.weather if truth.weather is not None else Weather.UNKNOWN),
        truth.weather is not None,
    )
    put(field_token("light", truth.light if truth.light is not None else Light.UNKNOWN), truth.light is not None)
    for field, count in zip(COUNTED if vocabulary.counts else (), truth.counts, strict=False):
        if count is None:
            return tokens, known
        put(count_token(field, count), True)
    if truth.hazards is None:
        return tokens, known
    for hazard in sorted(truth.hazards):
        put(field_token("hazard", hazard), True)
    if truth.advice is None:
        return tokens, known
    put(field_token("advice", truth.advice), True)
    if not truth.complete:
        return tokens, known
    for token in sentence_tokens(vocabulary, truth, topic):
        tokens.append(token)
        known.append(True)
    tokens.append(vocabulary.eos)
    known.append(True)
    return tokens, known


def sentence_tokens(vocabulary: Vocabulary, truth: Truth, topic: Topic) -> list[int]:
    """The words the topic's first fitting sentence gives for a complete truth."""
    assert truth.hazards is not None and truth.road is not None and truth.weather is not None
    assert truth.light is not None and truth.advice is not None
    names = {
        field_token("road", truth.road),
        field_token("weather", truth.weather),
        field_token("light", truth.light),
        field_token("advice", truth.advice),
        *(field_token("hazard", hazard) for hazard in truth.hazards),
    }
    if vocabulary.counts:
        pairs = zip(COUNTED, truth.counts, strict=True)
        names |= {count_token(field, count) for field, count in pairs if count is not None}
    said = {name.split(":")[0]: vocabulary.phrases[name] for name in names if not name.startswith("hazard")}
    named = worst(truth.hazards)
    if named is not None:
        said["hazard"] = vocabulary.phrases[field_token("hazard", named)]
    for sentence in topic.sentences:
        if holds(sentence.when, names, bool(truth.hazards)):
            return [vocabulary.index[word] for word in fill(sentence, said)]
    raise ValueError(f"topic {topic.name} has no sentence for {sorted(names)}")


def truth_of(answer: SceneAdvice) -> Truth:
    """The fields of a contract answer as a truth, complete if the answer counts."""
    vehicles, two_wheelers, pedestrians = (
        None if count == NOT_COUNTED else count for count in (answer.vehicles, answer.two_wheelers, answer.pedestrians)
    )
    counts = (vehicles, two_wheelers, pedestrians)
    return Truth(answer.road, answer.weather, answer.light, answer.hazards, answer.advice, counts)


def make_vocabulary() -> Vocabulary:
    """The vocabulary, checked together with its grammar."""
    vocabulary = Vocabulary(vocabulary_file())
    Grammar(vocabulary, 64)
    return vocabulary
