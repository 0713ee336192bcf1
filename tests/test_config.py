"""Configs as data: parsed, changed by path, told apart, and the same question whatever is added later."""

import gc
import json
from abc import ABC, abstractmethod

import pytest
from hypothesis import given, settings
from pydantic import ValidationError

from model.examples import any_design
from sinklab.config import Config, Part, changes, difference, identity, override, parse, plain, short
from sinklab.errors import SinklabError
from sinklab.model.design import Design
from sinklab.model.ffn import Plain, ReLU
from sinklab.model.masks import Prefix, Window
from sinklab.model.slots import FixedValue, KeyBias, SinkLogit
from sinklab.model.weights import PowerSum, RowSum, Sigmoid, Softmax


class Inner(Part, ABC):
    """A room of these tests."""

    @abstractmethod
    def what(self) -> str: ...


class Flat(Inner):
    size: int = 1

    def what(self) -> str:
        return "flat"


class Round(Inner):
    radius: float

    def what(self) -> str:
        return "round"


class Nested(Inner):
    def what(self) -> str:
        return "nested"

    inside: Inner = Flat()
    several: tuple[Inner, ...] = ()


class Group(Config):
    left: int = 0
    right: Inner = Flat()


class Experiment(Config):
    name: str
    rate: float = 1.0
    steps: int = 10
    on: bool = True
    layers: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    part: Inner = Flat()
    group: Group = Group()
    many: tuple[Inner, ...] = ()


BASE = Experiment(name="base")


# Plain data and back.


@settings(max_examples=100, deadline=None, derandomize=True)
@given(design=any_design())
def test_any_design_survives_json(design):
    again = parse(Design, json.loads(json.dumps(plain(design))))
    assert again == design
    assert plain(again) == plain(design)
    assert identity(again) == identity(design)
    assert difference(again) == difference(design)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(one=any_design(), other=any_design())
def test_two_designs_are_one_question_only_if_they_are_equal(one, other):
    assert (identity(one) == identity(other)) == (one == other)
    assert (difference(one) == difference(other)) == (one == other)
    assert bool(changes(one, other)) == (one != other)


def test_a_part_is_its_name_or_its_name_with_settings():
    assert parse(Experiment, {"name": "a", "part": "Flat"}).part == Flat()
    assert parse(Experiment, {"name": "a", "part": {"kind": "Round", "radius": 2}}).part == Round(radius=2.0)
    nested = parse(
        Experiment,
        {"name": "a", "part": {"kind": "Nested", "inside": {"kind": "Round", "radius": 1}, "several": ["Flat", {"kind": "Flat", "size": 3}]}},
    )
    assert nested.part == Nested(inside=Round(radius=1), several=(Flat(), Flat(size=3)))
    assert parse(Experiment, plain(nested)) == nested


def test_a_part_is_plain_with_its_kind_and_every_leaf():
    assert plain(Experiment(name="a", part=Nested(several=(Flat(size=2),)))) == {
        "name": "a",
        "rate": 1.0,
        "steps": 10,
        "on": True,
        "layers": [],
        "words": [],
        "part": {"kind": "Nested", "inside": {"kind": "Flat", "size": 1}, "several": [{"kind": "Flat", "size": 2}]},
        "group": {"left": 0, "right": {"kind": "Flat", "size": 1}},
        "many": [],
    }


def test_a_part_as_one_reads_it():
    assert short(Sigmoid()) == "Sigmoid"
    assert short(Sigmoid(normaliser=RowSum())) == "Sigmoid(normaliser=RowSum)"
    assert short(Sigmoid(normaliser=PowerSum(p=2))) == "Sigmoid(normaliser=PowerSum(p=2.0))"
    assert short(Window(size=4)) == "Window(size=4)"
    assert short((KeyBias(shared=True), SinkLogit())) == ["KeyBias(shared=True)", "SinkLogit"]


def test_configs_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        BASE.rate = 2.0


# Members of a room.


def test_members_are_the_concrete_classes():
    assert Inner.members() == {"Flat": Flat, "Round": Round, "Nested": Nested}


def test_an_abstract_class_between_is_no_member():
    class Middle(Inner, ABC):
        """Half a member."""

        @abstractmethod
        def of(self) -> int: ...

    class Whole(Middle):
        def of(self) -> int:
            return 1

        def what(self) -> str:
            return "whole"

    assert Inner.members().keys() == {"Flat", "Round", "Nested", "Whole"}
    del Middle, Whole
    gc.collect()
    assert Inner.members().keys() == {"Flat", "Round", "Nested"}


def test_a_member_that_lacks_a_method_is_no_silent_absence():
    with pytest.raises(TypeError, match="Half lacks what, which every Inner has"):

        class Half(Inner):
            def of(self) -> int:
                return 1

    gc.collect()


# What is refused.


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"name": "a", "rat": 1}, "Experiment: Experiment has no setting `rat`. Did you mean `rate`?"),
        ({"name": "a", "zzz": 1}, "Experiment: Experiment has no setting `zzz`."),
        ({"name": "a", "part": "Flatt"}, "Experiment: part: `Flatt` is none of Flat, Round, Nested. Did you mean `Flat`?"),
        ({"name": "a", "part": {"kind": "Flat", "sice": 1}}, "Experiment: part: Flat has no setting `sice`. Did you mean `size`?"),
        ({"name": "a", "group": {"lef": 1}}, "Experiment: group: Group has no setting `lef`. Did you mean `left`?"),
        ({"name": "a", "part": {"kind": "Nested", "inside": "Round"}}, "Experiment: part.inside.radius: Field required."),
        ({"name": "a", "part": "Round"}, "Experiment: part.radius: Field required."),
        ({"name": "a", "many": ["Flat", "Fla"]}, "Experiment: many.1: `Fla` is none of Flat, Round, Nested. Did you mean `Flat`?"),
        ({"name": "a", "steps": "many"}, "Experiment: steps: Input should be a valid integer, unable to parse string as an integer."),
        ({}, "Experiment: name: Field required."),
    ],
)
def test_a_mistake_is_said_in_a_sentence(data, sentence):
    with pytest.raises(SinklabError) as refusal:
        parse(Experiment, data)
    assert str(refusal.value) == sentence


def test_a_member_of_another_room_is_refused():
    with pytest.raises(SinklabError, match="part"):
        parse(Experiment, {"name": "a", "part": Softmax()})
    with pytest.raises(SinklabError, match="`Softmax` is none of Flat, Round, Nested"):
        parse(Experiment, {"name": "a", "part": "Softmax"})


@pytest.mark.parametrize(
    "data",
    [
        {"name": "a", "part": 3},
        {"name": "a", "part": None},
        {"name": "a", "part": {}},
        {"name": "a", "part": {"kind": 3}},
        {"name": "a", "part": {"kind": ["Flat"]}},
    ],
    ids=repr,
)
def test_what_is_no_part_is_refused_in_words(data):
    with pytest.raises(SinklabError, match="part"):
        parse(Experiment, data)


# Changed by path.


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("rate", "0.5", {"rate": 0.5}),
        ("steps", "1e3", {"steps": 1000}),
        ("on", "false", {"on": False}),
        ("name", "other", {"name": "other"}),
        ("part", "Nested", {"part": Nested()}),
        ("part", '{"kind": "Round", "radius": 3}', {"part": Round(radius=3)}),
        ("part.size", "4", {"part": Flat(size=4)}),
        ("group.left", "7", {"group": Group(left=7)}),
        ("group.right.size", "2", {"group": Group(right=Flat(size=2))}),
        ("group.right", '{"kind": "Round", "radius": 3}', {"group": Group(right=Round(radius=3))}),
        ("layers", "1,2, 3", {"layers": (1, 2, 3)}),
        ("layers", "[4, 5]", {"layers": (4, 5)}),
        ("layers", "6", {"layers": (6,)}),
        ("layers", "", {"layers": ()}),
        ("words", "a, b", {"words": ("a", "b")}),
        ("many", "Flat,Nested", {"many": (Flat(), Nested())}),
        ("many", '{"kind": "Flat", "size": 2}', {"many": (Flat(size=2),)}),
        ("many", '["Flat", {"kind": "Flat", "size": 2}]', {"many": (Flat(), Flat(size=2))}),
    ],
)
def test_override(path, text, expected):
    changed = override(BASE, path, text)
    assert changed == BASE.model_copy(update=expected)
    assert Experiment(name="base") == BASE


def test_override_one_after_another():
    deep = override(override(BASE, "part", "Nested"), "part.inside.size", "9")
    assert deep.part == Nested(inside=Flat(size=9))
    assert override(Design(), "weights", "Sigmoid").weights == Sigmoid()
    assert override(override(Design(), "weights", "Sigmoid"), "weights.normaliser", "RowSum").weights == Sigmoid(normaliser=RowSum())
    assert override(Design(), "slots", "KeyBias,SinkLogit").slots == (KeyBias(), SinkLogit())


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("rat", "1", "Experiment has no setting `rat`. Did you mean `rate`?"),
        ("zzz", "1", "Experiment has no setting `zzz`. Its settings: name, rate, steps, on, layers, words, part, group, many."),
        ("part.sizes", "1", "Flat has no setting `sizes`. Did you mean `size`?"),
        ("group.right.q", "1", "Flat has no setting `q`. Its settings: size."),
        ("rate.x", "1", "`rate` of Experiment is 1.0, which has no settings of its own."),
        ("many.0", "1", "`many` of Experiment is [], which has no settings of its own."),
        ("part", "Fat", "Experiment: part: `Fat` is none of Flat, Round, Nested. Did you mean `Flat`?"),
        ("steps", "x", "Experiment: steps: Input should be a valid integer, unable to parse string as an integer."),
        ("group.left", "x", "Group: left: Input should be a valid integer, unable to parse string as an integer."),
        ("rate", "", "Experiment: rate: Input should be a valid number, unable to parse string as a number."),
    ],
)
def test_override_refuses(path, text, sentence):
    with pytest.raises(SinklabError) as refusal:
        override(BASE, path, text)
    assert str(refusal.value) == sentence


def test_an_impossible_override_says_why():
    with pytest.raises(SinklabError, match=r"Rope turns pairs of dimensions, and heads of 7 have one left over\."):
        override(Design(), "head_size", "7")


def test_a_word_that_json_would_read_stays_a_word():
    assert [override(BASE, "name", text).name for text in ("true", "12", "")] == ["true", "12", ""]
    assert override(BASE, "words", "1,2").words == ("1", "2")


# What differs.


def test_difference_is_by_path_from_the_defaults():
    assert difference(BASE) == {"name": "base"}
    assert difference(Design()) == {}
    changed = Experiment(name="a", rate=2, part=Flat(size=2), group=Group(left=1, right=Flat(size=3)), many=(Flat(), Flat(size=5)))
    assert difference(changed) == {
        "name": "a", "rate": 2.0, "part.size": 2, "group.left": 1, "group.right.size": 3, "many": ["Flat", "Flat(size=5)"],
    }  # fmt: skip
    assert difference(Design(weights=Sigmoid(normaliser=RowSum()), depth=2)) == {"depth": 2, "weights": "Sigmoid(normaliser=RowSum)"}
    assert difference(Design(ffn=Plain(activation=ReLU()))) == {"ffn": "Plain(activation=ReLU)"}


def test_changes_are_from_a_base():
    base = Design(weights=Sigmoid(), mask=Window(size=8))
    assert changes(base, base) == {}
    assert changes(Design(weights=Sigmoid(normaliser=RowSum()), mask=Window(size=4)), base) == {"weights.normaliser": "RowSum", "mask.size": 4}
    assert changes(Design(weights=Softmax(), mask=Prefix(length=2)), base) == {"weights": "Softmax", "mask": "Prefix(length=2)"}
    assert changes(Design(), Design(weights=Softmax(alpha=2))) == {"weights.alpha": 1.0}


def test_paths_of_a_difference_can_be_given_to_override():
    wanted = Design(weights=Softmax(alpha=0.2), depth=3, slots=(KeyBias(), SinkLogit()), registers=1)
    found = Design()
    for path, leaf in difference(wanted).items():
        found = override(found, path, leaf if isinstance(leaf, str) else json.dumps(leaf))
    assert found == wanted


# The same question.


def versions(*bodies: dict, of: type = Config, name: str = "Thing"):
    """Classes of one name, as a file had them over time."""
    return [
        type(
            name,
            (of,),
            {
                "what": lambda self: name,
                "__module__": __name__,
                "__annotations__": {k: t for k, (t, _) in body.items()},
                **{k: v for k, (_, v) in body.items()},
            },
        )
        for body in bodies
    ]


def test_a_field_added_later_with_its_default_orphans_nothing():
    before, after = versions({"a": (int, 1)}, {"a": (int, 1), "b": (float, 0.5), "c": (Inner, Flat())})
    assert identity(before()) == identity(after())
    assert identity(before(a=2)) == identity(after(a=2))
    assert identity(after(a=2)) != identity(after(a=2, b=0.6))
    assert identity(after(c=Flat(size=2))) != identity(after())


def test_a_field_added_to_a_part_orphans_nothing():
    (before,), (after,) = (versions({"a": (int, 1)} | more, of=Inner, name="Later") for more in ({}, {"b": (int, 2)}))
    for values in ({}, {"a": 3}):
        assert identity(Experiment(name="x", part=before(**values))) == identity(Experiment(name="x", part=after(**values)))
        assert identity(Experiment(name="x", many=(before(**values),))) == identity(Experiment(name="x", many=(after(**values),)))
    del before, after
    gc.collect()


def test_an_identity_is_twelve_digits_that_stay():
    """Of other processes and other days too."""
    assert identity(BASE) == identity(Experiment(name="base", rate=1.0))
    assert identity(Design(weights=Sigmoid(normaliser=RowSum()), slots=(KeyBias(shared=True), SinkLogit()), depth=3, registers=1)) == "a4b066694777"
    assert len(identity(BASE)) == 12 and int(identity(BASE), 16) >= 0


def test_every_leaf_is_part_of_the_question():
    changed = [
        {"name": "other"},
        {"rate": 2},
        {"on": False},
        {"layers": (1,)},
        {"layers": (1, 1)},
        {"words": ("1",)},
        {"part": Flat(size=2)},
        {"part": Nested()},
        {"part": Nested(inside=Flat(size=2))},
        {"part": Nested(several=(Flat(),))},
        {"group": Group(left=1)},
        {"many": (Flat(),)},
        {"many": (Flat(), Flat())},
    ]
    found = {identity(BASE)} | {identity(Experiment(**({"name": "base"} | change))) for change in changed}
    assert len(found) == len(changed) + 1


@pytest.mark.parametrize(
    "place",
    [
        lambda part: Experiment(name="x", part=part),
        lambda part: Experiment(name="x", part=Nested(inside=part)),
        lambda part: Experiment(name="x", group=Group(right=part)),
        lambda part: Experiment(name="x", many=(Flat(), part)),
        lambda part: Experiment(name="x", part=Nested(several=(part,))),
    ],
    ids=["part", "part in part", "part in group", "among several", "among several in part"],
)
def test_a_raised_version_is_another_question_wherever_the_part_stands(place, monkeypatch):
    unaffected = identity(Experiment(name="x", part=Nested()))
    before = identity(place(Round(radius=1)))
    monkeypatch.setattr(Round, "version", 2)
    assert identity(place(Round(radius=1))) != before
    assert identity(Experiment(name="x", part=Nested())) == unaffected
    monkeypatch.setattr(Round, "version", 3)
    assert len({before, identity(place(Round(radius=1)))}) == 2


@pytest.mark.parametrize("kind", [Experiment, Flat], ids=["the whole", "a part at its default"])
def test_a_raised_version_counts_at_the_defaults_too(kind, monkeypatch):
    before = identity(BASE)
    monkeypatch.setattr(kind, "version", 2, raising=False)
    assert identity(BASE) != before


def test_integers_and_floats_that_are_equal_are_one_question():
    assert identity(Experiment(name="a", rate=2)) == identity(Experiment(name="a", rate=2.0))
    assert identity(Design(weights=Softmax(alpha=2))) == identity(Design(weights=Softmax(alpha=2.0)))
    assert identity(Design(slots=(FixedValue(times=5),))) == identity(parse(Design, {"slots": [{"kind": "FixedValue", "times": 5}]}))
