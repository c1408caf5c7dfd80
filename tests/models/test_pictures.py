"""Picture encoders and LLaVA against transformers in float32, on tiny random checkpoints."""

import dataclasses
import json
import re

import numpy as np
import pytest

from quire.core.errors import ModelLoadError
from quire.models.config.config_reader import read_model_config
from quire.models.loader import load_model
from quire.models.vision import attention, slices
from quire.models.vision.encoder_loader import expected_encoder_bytes, load_encoder
from quire.models.vision.slices import finish
from tests.lazy_packages import lazy_package
from tests.models.conftest import SHARED

torch = pytest.importorskip("torch")
transformers = lazy_package("transformers")

EDGE, PATCH = 28, 7
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "image_size": EDGE,
    "patch_size": PATCH,
}
TOKEN = 210
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
PREPARED = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_center_crop": True,
    "size": {"shortest_edge": EDGE},
    "crop_size": {"height": EDGE, "width": EDGE},
    "resample": 3,
    "image_mean": MEAN,
    "image_std": STD,
}
FULL = {"vision_feature_select_strategy": "full"}
ENCODERS = {
    "clip": ("CLIP", {}),
    "clip-full": ("CLIP", {**FULL, "vision_feature_layer": 4, "multimodal_projector_bias": False}),
    "clip-early": ("CLIP", {"vision_feature_layer": -4}),
    "siglip": ("Siglip", {**FULL, "vision_feature_layer": -1, "projector_hidden_act": "gelu"}),
}


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    """Return a function that gives (model, folder) of an entry of ENCODERS, made once."""
    made = {}

    def get(name):
        if name in made:
            return made[name]
        family, options = ENCODERS[name]
        vision = getattr(transformers, f"{family}VisionConfig")(**VISION)
        text = transformers.LlamaConfig(**SHARED)
        config = transformers.LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=TOKEN, **options
        )
        model = transformers.LlavaForConditionalGeneration(config)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                parameter.normal_(0, 0.15, generator=generator)
                if "norm" in parameter_name and parameter_name.endswith("weight"):
                    parameter.add_(1.0)
        folder = tmp_path_factory.mktemp(name)
        model.eval().float().save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(PREPARED))
        made[name] = model, folder
        return made[name]

    return get


@pytest.fixture
def pixels():
    """Two pictures, (EDGE, EDGE, 3) uint8."""
    shape = 2, EDGE, EDGE, 3
    return np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)


def tensor_of(pixels):
    """Return what transformers' processors make of prepared pixels, (B, 3, EDGE, EDGE)."""
    values = (pixels / 255 - np.array(MEAN)) / np.array(STD)
    return torch.tensor(values.transpose(0, 3, 1, 2), dtype=torch.float32)


def wanted_rows(model, pixels):
    with torch.no_grad():
        return torch.stack(model.get_image_features(tensor_of(pixels)).pooler_output).numpy()


def encoded(encoder, backend, pixels):
    """Return the rows of pictures that are encoded together, on the host."""
    return [np.array(backend.to_numpy(rows)) for rows in finish(encoder.encode(list(pixels)))]


@pytest.mark.parametrize("name", ENCODERS)
def test_rows_match_transformers(name, llava, backend, pixels):
    model, folder = llava(name)
    config = read_model_config(folder)
    encoder = load_encoder(folder, config, backend, "float32")
    want = wanted_rows(model, pixels)
    got = np.stack(encoded(encoder, backend, pixels))
    assert got.shape == want.shape == (2, config.vision.least_tokens, SHARED["hidden_size"])
    assert np.abs(got - want).max() / np.abs(want).max() < 1e-5
    assert encoder.nbytes == expected_encoder_bytes(config, "float32")


@pytest.mark.parametrize("work", [1, slices.SLICE_WORK])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_do_not_depend_on_company_or_slices(llava, backend, monkeypatch, work, dtype):
    _, folder = llava("clip")
    config = read_model_config(folder)
    encoder = load_encoder(folder, config, backend, dtype)
    shape = 5, EDGE, EDGE, 3
    pixels = np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)
    alone = [encoded(encoder, backend, [picture])[0] for picture in pixels]
    monkeypatch.setattr(slices, "SLICE_WORK", work)
    monkeypatch.setattr(slices, "MIN_ROWS", 3)
    monkeypatch.setattr(attention, "SLICE_WORK", work)
    for first in range(5):
        together = encoded(encoder, backend, pixels[first:])
        for one, same in zip(alone[first:], together, strict=True):
            np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_greedy_tokens_after_two_pictures_match_transformers(
    name, llava, backend, create_driver, pixels
):
    model, folder = llava(name)
    config = read_model_config(folder)
    encoder = load_encoder(folder, config, backend, "float32")
    rows = [TOKEN] * config.vision.least_tokens
    prompt = [5, 6, *rows, 7, *rows, 8, 9]
    want, images = [], tensor_of(pixels)
    with torch.no_grad():
        for _ in range(32):
            ids = torch.tensor([[*prompt, *want]])
            want.append(int(model(input_ids=ids, pixel_values=images).logits[0, -1].argmax()))

    class WithPictures:
        """The backend, which gives the pictures' rows to the first step."""

        def __getattr__(self, name):
            return getattr(backend, name)

        def upload(self, batch):
            if len(batch.input_ids) == len(prompt):
                places = np.flatnonzero(batch.input_ids == TOKEN).astype(np.int32)
                rows = np.concatenate(encoded(encoder, backend, pixels))
                given = {"embedding_rows": places, "embeddings": rows}
                batch = dataclasses.replace(batch, **given)
            return backend.upload(batch)

    driver = create_driver(folder, WithPictures())
    assert driver.greedy([prompt], 32) == [want]


def test_names_of_transformers_4_are_read(llava, backend, pixels, tmp_path):
    from safetensors.numpy import load_file, save_file

    _, folder = llava("clip")
    tensors = load_file(folder / "model.safetensors")
    longer = {
        re.sub(r"^vision_tower\.", "vision_tower.vision_model.", n): t for n, t in tensors.items()
    }
    save_file(longer, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    config = read_model_config(tmp_path)
    load_model(tmp_path, backend)
    encoders = [load_encoder(path, config, backend, "float32") for path in (folder, tmp_path)]
    (one,), (other,) = (encoded(e, backend, pixels[:1]) for e in encoders)
    np.testing.assert_array_equal(one, other)


def changed(folder, target, file, **values):
    """Copy the configuration with other values in one of its files; None leaves a field out."""
    for name in ("config.json", "preprocessor_config.json"):
        settings = json.loads((folder / name).read_text())
        if name == file:
            settings |= values
            settings = {key: value for key, value in settings.items() if value is not None}
        (target / name).write_text(json.dumps(settings))
    return target


@pytest.mark.parametrize(
    ("file", "values", "reason"),
    [
        ("config.json", {"vision_feature_layer": [-2, -5]}, "must be one number"),
        ("config.json", {"vision_feature_layer": -6}, "must be one number of -5 to 4"),
        ("config.json", {"image_token_index": 211}, "below the vocabulary's size"),
        ("config.json", {"vision_config": {"model_type": "pixtral"}}, "must be one of clip"),
        ("config.json", {"text_config": {"model_type": "gpt2"}}, "must be one of llama"),
        ("config.json", {"projector_hidden_act": "relu"}, "must be one of quick_gelu"),
        ("preprocessor_config.json", {"do_pad": True}, "does not implement this option"),
        ("preprocessor_config.json", {"do_center_crop": False}, "must be true where size"),
        ("preprocessor_config.json", {"crop_size": {"height": 14, "width": 14}}, "28 x 28"),
        ("preprocessor_config.json", {"size": {"shortest_edge": 10**6}}, "of 28 to 4096"),
        ("preprocessor_config.json", {"image_std": [0.0, 1.0, 1.0]}, "must be three numbers"),
        ("preprocessor_config.json", {"resample": 9}, "one of Pillow's filters"),
    ],
)
def test_what_would_change_a_picture_is_refused(llava, tmp_path, file, values, reason):
    _, folder = llava("clip")
    with pytest.raises(ModelLoadError, match=reason):
        read_model_config(changed(folder, tmp_path, file, **values))


def test_a_model_without_its_processor_s_file_is_refused(llava, tmp_path):
    _, folder = llava("clip")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ModelLoadError, match="pictures need preprocessor_config.json"):
        read_model_config(tmp_path)
