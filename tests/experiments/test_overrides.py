"""`path=value`: part of the identity under `experiment.`, never under `machine.`; what is not known is refused with the nearest name."""

import pytest

from sinklab.config import identity
from sinklab.errors import SinklabError
from sinklab.experiments.experiment import Experiment
from sinklab.experiments.overrides import overridden
from sinklab.model.slots import KeyBias, NarrowKeyBias
from sinklab.model.weights import Linear, RowSum, Sigmoid

BASE = Experiment()


def experiment(*words):
    return overridden(BASE, words).experiment


def complaint(*words):
    with pytest.raises(SinklabError) as error:
        overridden(BASE, words)
    return str(error.value)


def test_leaves_and_parts():
    assert experiment("experiment.model.weights=Sigmoid").model.weights == Sigmoid()
    assert experiment("experiment.optimiser.lr=1e-3", "experiment.steps=7").optimiser.lr == 1e-3
    assert experiment("experiment.optimiser.betas=0.8,0.9").optimiser.betas == (0.8, 0.9)
    assert experiment("experiment.model.slots=KeyBias").model.slots == (KeyBias(),)
    assert experiment('experiment.model.slots={"kind": "NarrowKeyBias", "dimensions": 4}').model.slots == (NarrowKeyBias(dimensions=4),)
    assert experiment("experiment.model.slots=KeyBias, HeadGate").model.slots[0] == KeyBias()
    assert experiment("experiment.model.slots=[]") == BASE
    assert experiment() == BASE


def test_settings_of_a_part_that_is_named_with_them_in_any_order():
    words = ("experiment.model.weights.normaliser=RowSum", "experiment.model.weights=Sigmoid")
    assert experiment(*words).model.weights == experiment(*words[::-1]).model.weights == Sigmoid(normaliser=RowSum())


def test_pairs_that_are_possible_together_alone():
    words = ("experiment.data.corpus=BigramBackcopy", "experiment.data.tokenizer=OwnTokens", "experiment.model.vocabulary=65")
    assert experiment(*words) == experiment(*words[::-1])
    kernel = experiment('experiment.model.weights={"kind": "Linear", "normaliser": "RowSum"}', "experiment.model.features=Elu")
    assert kernel.model.weights == Linear(normaliser=RowSum())


def test_the_machine_is_apart():
    job = overridden(BASE, ("machine.device=cuda", "machine.micro_batch=4"))
    assert (job.machine.device, job.machine.micro_batch) == ("cuda", 4)
    assert identity(job.experiment) == identity(BASE) != identity(experiment("experiment.steps=7"))


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("weights=Sigmoid", "`weights` is neither under `experiment.` nor under `machine.`. Did you mean `experiment.model.weights`?"),
        ("model.wieghts=Sigmoid", "`model.wieghts` is neither under `experiment.` nor under `machine.`. Did you mean `experiment.model.weights`?"),
        ("divice=cuda", "`divice` is neither under `experiment.` nor under `machine.`. Did you mean `machine.device`?"),
        ("experiment.modle.width=4", "experiment: Experiment has no setting `modle`. Did you mean `model`?"),
        ("experiment.model.wieghts=4", "experiment.model: Design has no setting `wieghts`. Did you mean `weights`?"),
        ("machine.devise=cuda", "machine: Machine has no setting `devise`. Did you mean `device`?"),
        ("experiment.model.weights.alhpa=2", "experiment.model.weights: Softmax has no setting `alhpa`. Did you mean `alpha`?"),
        ("experiment.steps.more=1", "`steps` in `experiment.steps.more` is 20000, which has no settings by name; give all of it."),
        ("experiment.model.weights", "`experiment.model.weights` is no override; write path=value, such as experiment.model.weights=Sigmoid."),
        ("experiment.steps=", "`experiment.steps=` is no override; write path=value, such as experiment.model.weights=Sigmoid."),
        ("rubbish=3", "`rubbish` is neither under `experiment.` nor under `machine.`."),
        ("experiment.model.mask=Window", "experiment.model.mask.size: Field required."),
        ("experiment.steps=many", "experiment.steps: Input should be a valid integer, unable to parse string as an integer."),
        ("experiment.steps=0", "experiment.steps: Input should be greater than 0."),
        ("experiment.data.corpus=BigramBackcopy", "BigramBackcopy has tokens of its own, and HubTokenizer makes them of text; OwnTokens does not."),
    ],
)
def test_what_is_refused(word, sentence):
    assert complaint(word) == sentence


def test_more_that_is_refused():
    assert complaint("experiment.model.weights=Sigmod").endswith("Did you mean `Sigmoid`?")
    assert "finite" in complaint("experiment.optimiser.lr=NaN")
    assert complaint("experiment={}").startswith("`experiment` is neither under `experiment.`")
    assert complaint("experiment.steps=7", "experiment.steps=8") == "`experiment.steps` is given twice."
