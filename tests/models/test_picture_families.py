"""Encoders of the families that read pictures, against transformers on its own processors."""

import io
import json
import math
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from quire import LLM
from quire.core.errors import ConfigError, ModelLoadError
from quire.kernels.registry import create_backend
from quire.llm.pictures.decoding import decode
from quire.models.config.config_reader import read_model_config
from quire.models.vision import slices
from quire.models.vision.encoder import BATCH_PATCHES
from quire.models.vision.encoder_loader import expected_encoder_bytes, load_encoder
from quire.models.vision.encoding_memory import encoding_bytes
from tests.picture_families import FAMILIES
from tests.sizes import sized
from tools.hostile_pictures import picture

torch = pytest.importorskip("torch")

SIZES = [(40, 30), (90, 31), (33, 170), (200, 200), (5, 3), (400, 12)]
FILES = [picture(size=size, seed=seed) for seed, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return a function that gives a family's model and folder, made once."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = FAMILIES[name].write(folder), folder
        return made[name]

    return get


def prepared(config, files=FILES):
    """Return the pixels of all parts of files, and the tilings of each."""
    pixels, tilings = [], []
    for made in (decode(data, config.vision.input) for data in files):
        for part in made.parts:
            pixels.append(np.frombuffer(part.data, np.uint8).reshape(part.height, part.width, 3))
            tiles = made.rows, made.columns
            tilings.append(config.vision.tiling(tiles, made.height, made.width))
    return pixels, tilings


def encoded(encoder, backend, pixels, tilings):
    slices_of = encoder.encode(pixels, tilings)
    return [np.array(backend.to_numpy(rows)) for rows in slices.finish(slices_of)]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_match_transformers(name, checkpoint, backend):
    model, folder = checkpoint(name)
    images = [Image.open(io.BytesIO(data)) for data in FILES]
    inputs = FAMILIES[name].create_processor(folder).image_processor(images, return_tensors="pt")
    kinds = ("pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask")
    with torch.no_grad():
        found = model.get_image_features(**{k: v for k, v in inputs.items() if k in kinds})
    want = found.pooler_output
    want = torch.cat([rows.reshape(-1, rows.shape[-1]) for rows in want]).numpy()
    config = read_model_config(folder)
    encoder = load_encoder(folder, config, backend, "float32")
    got = np.concatenate(encoded(encoder, backend, *prepared(config)))
    assert got.shape == want.shape
    assert np.abs(got - want).max() / np.abs(want).max() < 1e-4
    assert encoder.nbytes == expected_encoder_bytes(config, "float32")


@pytest.mark.parametrize("work", [1, slices.SLICE_WORK])
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_do_not_depend_on_company_or_slices(name, checkpoint, backend, monkeypatch, work):
    config = read_model_config(checkpoint(name)[1])
    encoder = load_encoder(checkpoint(name)[1], config, backend, "bfloat16")
    parts = prepared(config, sized([FILES[n] for n in (1, 2, 5)], FILES))
    alone = [
        encoded(encoder, backend, [one], [tiling])[0] for one, tiling in zip(*parts, strict=True)
    ]
    monkeypatch.setattr(slices, "SLICE_WORK", work)
    for got, want in zip(encoded(encoder, backend, *parts), alone, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", FAMILIES)
def test_encoding_takes_no_more_memory_than_is_planned(name, checkpoint):
    config = read_model_config(checkpoint(name)[1])
    vision = config.vision
    backend = create_backend("cpu", threads=1)
    encoder = load_encoder(checkpoint(name)[1], config, backend, "float32")
    shape = vision.input
    if shape.multiple:
        edge = math.isqrt(shape.max_pixels) // shape.multiple * shape.multiple
        tall = Image.new("RGB", (edge, edge))
    else:
        size = max(shape.grids, default=(shape.height, shape.width))
        tall = Image.new("RGB", (size[1], size[0]))
    file = io.BytesIO()
    tall.save(file, "PNG")
    pixels, tilings = prepared(config, [file.getvalue()])
    num_patches = pixels[0].shape[0] * pixels[0].shape[1] // vision.patch_size**2
    count = max(1, BATCH_PATCHES // num_patches)
    planned = encoding_bytes(vision, config.hidden_size, 2**20)
    encoded(encoder, backend, pixels[:1], tilings[:1])
    tracemalloc.start()
    try:
        slices_of = encoder.encode(pixels[:1] * count, tilings[:1] * count)
        rows = [np.array(made) for made in slices.finish(slices_of)]
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(rows) == count
    assert planned / 5 < taken <= planned


def test_steps_must_hold_a_picture_whose_rows_see_later_ones(checkpoint, device):
    folder = str(checkpoint("gemma3")[1])
    settings = {"device": device, "threads": 1, "memory": 2**26, "max_num_seqs": 20}
    with pytest.raises(ConfigError, match=r"a token of each other request, 16 \+ 20; got 35"):
        LLM(folder, max_num_batched_tokens=35, **settings)
    LLM(folder, max_num_batched_tokens=36, **settings).shutdown()


def changed(folder, target, file, values):
    """Copy the configuration with other values in one of its files; dots lead into objects."""
    for name in ("config.json", "preprocessor_config.json"):
        settings = json.loads((folder / name).read_text())
        for path, value in values.items() if name == file else ():
            *outer, last = path.split(".")
            place = settings
            for part in outer:
                place = place[part]
            place[last] = value
        (target / name).write_text(json.dumps(settings))
    return target


CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"


@pytest.mark.parametrize(
    ("name", "file", "values", "reason"),
    [
        ("gemma3", CONFIG, {"mm_tokens_per_image": 9}, "must be a square whose edge divides the 8"),
        ("gemma3", CONFIG, {"text_config.sliding_window": 15}, r"at most sliding_window \(15\)"),
        ("gemma3", CONFIG, {"boi_token_index": 999}, "boi_token_index must be below the vocab"),
        ("gemma3", PROCESSOR, {"do_pad": True}, "does not implement this option"),
        ("gemma3", PROCESSOR, {"do_pan_and_scan": 1}, "must be true or false"),
        (
            "gemma3-crops",
            PROCESSOR,
            {"pan_and_scan_max_num_crops": 0},
            "pan_and_scan_max_num_crops must be an integer >= 1",
        ),
        ("idefics3", CONFIG, {"scale_factor": 3}, "must divide the 8 patches"),
        ("llava_next", CONFIG, {"image_grid_pinpoints": [[30, 45]]}, "multiples of 30 up to"),
        ("llava_next", CONFIG, {"image_grid_pinpoints": 30}, "must be a list of heights"),
        ("llava_next", CONFIG, {"vision_feature_select_strategy": "full"}, "tiles are joined"),
        ("llava_next", PROCESSOR, {"image_grid_pinpoints": [[30, 30]]}, "those of config.json"),
        ("llava_next", PROCESSOR, {"size.shortest_edge": 31}, "a shortest_edge of 30"),
        ("llava_onevision", CONFIG, {"vision_aspect_ratio": "anyres"}, "must be anyres_max_N"),
        ("llava_onevision", CONFIG, {"vision_feature_select_strategy": "default"}, "no class"),
        ("idefics3", PROCESSOR, {"max_image_size": {"longest_edge": 64}}, "longest_edge of 56"),
        ("qwen2_vl", CONFIG, {"vision_config.num_heads": 3}, "must divide a fourth of the width"),
        (
            "qwen2_vl",
            CONFIG,
            {"text_config.rope_parameters.mrope_section": [2, 3]},
            "3 numbers in mrope_section, 8 in all",
        ),
        ("qwen2_vl", PROCESSOR, {"size.shortest_edge": 10**6}, "must allow a picture of 14 x 14"),
        ("qwen2_vl", PROCESSOR, {"merge_size": 4}, "does not implement this option"),
        ("qwen2_5_vl", CONFIG, {"vision_config.window_size": 7}, "must be 14 to 4096"),
    ],
)
def test_what_would_change_a_picture_is_refused(checkpoint, tmp_path, name, file, values, reason):
    with pytest.raises(ModelLoadError, match=reason):
        read_model_config(changed(checkpoint(name)[1], tmp_path, file, values))


def test_a_qwen_of_older_files_is_read(checkpoint, tmp_path, caplog):
    """The decoder's fields lay among the model's, and sizes in fields of their own."""
    folder = checkpoint("qwen2_vl")[1]
    config = json.loads((folder / CONFIG).read_text())
    text = config.pop("text_config")
    sections = text.pop("rope_parameters")["mrope_section"]
    text |= {"rope_theta": 10000.0, "rope_scaling": {"type": "mrope", "mrope_section": sections}}
    config |= {name: value for name, value in text.items() if name != "model_type"}
    (tmp_path / CONFIG).write_text(json.dumps(config))
    processor = json.loads((folder / PROCESSOR).read_text())
    size = processor.pop("size")
    processor |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    (tmp_path / PROCESSOR).write_text(json.dumps(processor))
    assert read_model_config(tmp_path) == read_model_config(folder)
    assert "not known" not in caplog.text


def test_llava_onevision_as_it_is_published(tmp_path, caplog):
    """Its files name all sizes of pictures twice."""
    grids = [[384 * down, 384 * across] for down in range(1, 7) for across in range(1, 7)]
    text = {
        "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 24,
        "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
        "num_key_value_heads": 2, "rope_theta": 1000000.0, "vocab_size": 152000,
    }  # fmt: skip
    vision = {
        "hidden_size": 1152, "image_size": 384, "intermediate_size": 4304, "patch_size": 14,
        "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 26,
        "vision_use_head": False,
    }  # fmt: skip
    config = {
        "architectures": ["LlavaOnevisionForConditionalGeneration"], "ignore_index": -100,
        "image_grid_pinpoints": grids, "image_token_index": 151646, "text_config": text,
        "model_type": "llava_onevision", "projector_hidden_act": "gelu",
        "tie_word_embeddings": False, "use_image_newline_parameter": True,
        "video_token_index": 151647, "vision_aspect_ratio": "anyres_max_9",
        "vision_config": vision, "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }  # fmt: skip
    processor = {
        "do_convert_rgb": True, "do_normalize": True, "do_pad": True, "do_rescale": True,
        "do_resize": True, "image_grid_pinpoints": grids, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "resample": 3, "rescale_factor": 1 / 255,
        "size": {"height": 384, "width": 384},
    }  # fmt: skip
    for file, values in ((CONFIG, config), (PROCESSOR, processor)):
        (tmp_path / file).write_text(json.dumps(values))
    made = read_model_config(tmp_path)
    assert "not known" not in caplog.text
    assert made.vision.tiling((6, 6), 2304, 2304).num_rows == 729 + 81 * 82
    assert made.vision.tiling((1, 2), 100, 200).num_rows == 729 + 27 * 55
    assert made.vision.tiling((0, 0), 5, 9).num_rows == 730
    assert made.vision.most_tokens >= 729 + 81 * 82
    assert made.vision.input.among(2).cut == "square"
    # The published files of both leave most fields of config.json to transformers' defaults.
    for name in ("image_grid_pinpoints", "image_token_index", "vision_aspect_ratio"):
        config.pop(name)
    (tmp_path / CONFIG).write_text(json.dumps(config))
    assert read_model_config(tmp_path) == made


def test_gemma_3_as_it_is_published(tmp_path):
    """Its files leave out what transformers has as defaults."""
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }  # fmt: skip
    vision = {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "patch_size": 14,
        "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
        "vision_use_head": False,
    }  # fmt: skip
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
        "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
        "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
        "text_config": text, "torch_dtype": "bfloat16", "vision_config": vision,
    }  # fmt: skip
    processor = {
        "do_convert_rgb": None, "do_normalize": True, "do_pan_and_scan": None, "do_rescale": True,
        "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2,
        "rescale_factor": 1 / 255, "size": {"height": 896, "width": 896},
    }  # fmt: skip
    (tmp_path / CONFIG).write_text(json.dumps(config))
    (tmp_path / PROCESSOR).write_text(json.dumps(processor))
    made = read_model_config(tmp_path)
    assert (made.num_heads, made.num_kv_heads, made.head_dim, made.vocab_size) == (
        8,
        4,
        256,
        262208,
    )
    assert made.vision.least_tokens == 256
    assert (made.vision.merge, made.vision.input.resample) == (4, 2)
    assert made.rope.scaling["factor"] == 8.0
