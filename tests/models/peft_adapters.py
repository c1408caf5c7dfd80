"""Random adapters as peft writes them, and a driver that has them."""

import copy
import warnings

import numpy as np

from quire.models.adapters.adapter_placement import place_adapter
from quire.models.adapters.base_weights import BaseWeights
from quire.models.adapters.peft_folder import read_adapter


class AdaptedModels:
    """Gives (peft's model, the adapter's folder) of an entry of MODELS, each made once."""

    def __init__(self, oracle, tmp_path_factory):
        self._oracle, self._folders, self._made = oracle, tmp_path_factory, {}

    def __call__(self, name, targets=None, seed=0, rank=5, **settings):
        key = name, seed, rank, str(targets), str(settings)
        if key not in self._made:
            settings = {"fan_in_fan_out": name == "gpt2", "r": rank, **settings}
            self._made[key] = self._create(name, targets, seed, settings)
        return self._made[key]

    def _create(self, name, targets, seed, settings):
        import peft
        import torch

        model, generator = copy.deepcopy(self._oracle(name)[0]), torch.Generator().manual_seed(seed)
        config = peft.LoraConfig(
            lora_alpha=3, target_modules=targets, init_lora_weights=True, **settings
        )
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            model = peft.get_peft_model(model, config)
            for parameter_name, parameter in model.named_parameters():
                if "magnitude" in parameter_name:
                    parameter.mul_(1.4)
                elif parameter.requires_grad or "lora_" in parameter_name:
                    noise = torch.empty_like(parameter)
                    parameter.add_(noise.normal_(0, 0.15, generator=generator))
            folder = self._folders.mktemp("adapter")
            # A README, rendered from a template, that nothing reads.
            model.create_or_update_model_card = lambda _: None
            model.save_pretrained(folder, save_embedding_layers=False)
        return model.eval(), folder


def add(driver, *folders):
    """Give adapters the slots from 1 on."""
    for slot, folder in enumerate(folders, 1):
        places, base = driver.decoder.adapted, BaseWeights(driver.folder)
        placed = place_adapter(read_adapter(folder), places, driver.backend, base)
        assert placed.parts
        placed.set(slot)
    return driver


def check_rows(models, name, kind, backend, create_driver, oracle_logits, prompts):
    """Check an adapter's logits against peft's, and that a mixed batch's rows have these bits.

    Args:
        models: Fixtures ``oracle`` and ``adapted``.
        name, kind: The entry of MODELS; targets and settings of the adapter.
        prompts: Two, of different lengths.
    """
    (oracle, adapted), (targets, settings) = models, kind
    model, folder = adapted(name, targets, **settings)
    driver = add(create_driver(oracle(name)[1], backend, takes_adapters=True), folder)
    prompt, other = map(np.array, prompts)
    driver.adapters = [1]
    got, want = driver.step([prompt]), oracle_logits(model, prompt.tolist())
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    plain = oracle_logits(oracle(name)[0], prompt.tolist())
    assert np.abs(want - plain).max() > 0.01 * np.abs(plain).max()
    if backend.name == "reference":
        return  # torch's attention rounds differently with the shapes
    driver.start(3)
    driver.adapters = [0, 1, 0]
    together = driver.step([other, prompt, prompt], "last")
    np.testing.assert_array_equal(together[1], got[-1])
    without = create_driver(oracle(name)[1], backend).step([prompt], "last")
    np.testing.assert_array_equal(together[2], without[0])
