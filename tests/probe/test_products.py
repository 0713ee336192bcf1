"""Faster float32 products are float32 products, and the process's setting is left as it was."""

import pytest
import torch

import sinklab
from sinklab.probe import products
from small import small_llama


def setting():
    return torch.backends.mkldnn.matmul.fp32_precision


def test_products_that_round_are_noticed():
    linear = torch.nn.functional.linear
    assert products.multiplies_exactly(linear)
    assert not products.multiplies_exactly(lambda x, w: linear(x.bfloat16().float(), w.bfloat16().float()))
    assert not products.multiplies_exactly(lambda x, w: linear(x.half().float(), w))
    assert not products.multiplies_exactly(lambda x, w: linear(x.bfloat16().float(), w) if len(x) > 100 else linear(x, w))


def test_where_it_is_used_it_is_exact():
    if products.onednn_is_exact():
        with products.fastest_float32(small_llama()):
            assert setting() == "bf16"
            assert products.multiplies_exactly(torch.nn.functional.linear)
    assert setting() == "none"


def test_half_precision_and_the_users_own_choice_are_left_alone():
    with products.fastest_float32(small_llama().bfloat16()):
        assert setting() == "none"
    with products.float32_products("tf32"), products.fastest_float32(small_llama()):
        assert setting() == "tf32"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_the_setting_is_put_back(error):
    class Stop:
        name = "stop"

        def see(self, seen, ledger):
            if error:
                raise error

    ids = torch.randint(3, 200, (2, 20))
    if error:
        with pytest.raises(error):
            sinklab.measure(small_llama(), ids, probes=[Stop()])
    else:
        sinklab.measure(small_llama(), ids)
    assert setting() == "none"


def test_the_numbers_are_those_without_it(monkeypatch):
    ids = torch.randint(3, 200, (4, 60))
    with_it = sinklab.measure(small_llama(), ids)
    monkeypatch.setattr(products, "onednn_is_exact", lambda: False)
    torch.testing.assert_close(sinklab.measure(small_llama(), ids).alpha, with_it.alpha, atol=1e-6, rtol=1e-5)
