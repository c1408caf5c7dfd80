"""Weights of models as nice values."""

from __future__ import annotations

import pytest

from quire.core.errors import ConfigError
from quire.server.registry.core_weights import CoreWeights


def test_no_engine_steps_back_where_all_weigh_the_same():
    assert CoreWeights(()).niceness("one") == 0
    assert CoreWeights(["one=1", "two=1.0"]).niceness("two") == 0


@pytest.mark.parametrize(("weight", "niceness"), [(1.25, 1), (2, 3), (3, 5), (10, 10), (64, 19)])
def test_the_heaviest_stays_and_the_others_step_back(weight, niceness):
    weights = CoreWeights([f"one={weight}"])
    assert (weights.niceness("one"), weights.niceness("two")) == (0, niceness)
    assert 1.25**niceness == pytest.approx(weight, rel=0.12)


def test_other_ways_to_write_a_name_are_the_same():
    weights = CoreWeights(["org/Model:Q4_K_M=2", "b=4"])
    assert weights.niceness("hf.co/org/model:q4_k_m") == 3
    assert weights.niceness("B:latest") == 0


@pytest.mark.parametrize(
    "wrong", ["one", "=2", "one=", "one=0.5", "one=65", "one=nan", "one=inf", "one=-1", "one=2x"]
)
def test_what_is_no_weight_is_refused(wrong):
    with pytest.raises(ConfigError, match="--core-weight must be NAME=WEIGHT"):
        CoreWeights([wrong])


def test_a_model_has_one_weight():
    with pytest.raises(ConfigError, match="once a model"):
        CoreWeights(["one=2", "ONE:latest=3"])


def test_a_weight_of_no_model_is_refused():
    weights = CoreWeights(["one=2", "two=3"])
    weights.check_known(["One", "two"])
    with pytest.raises(ConfigError, match=r"must name a model of this server \(one\); got two"):
        weights.check_known(["one"])
