"""Which numbers must be finite: those of model and optimizer, and only where a tensor shows them."""

from __future__ import annotations

import struct

import pytest

from sentinel.checkpoints.parsing.content import Role, look_at, role_of
from sentinel.checkpoints.parsing.floats import FloatScan, Look, View
from sentinel.checkpoints.validate import validate

NAN, INFINITY = float("nan"), float("inf")


def content(make, value, payloads, name="step_7.pt"):
    make.write(make.root / name, make.torch_file(value, payloads))
    return validate(make.root / name, "content", now_s=make.now_s)


def scalar(make, key):
    return make.tensor((), key=key)


def one(number):
    return struct.pack("<f", number)


SCALARS = [
    ("callbacks", "ModelCheckpoint{'monitor': None}", "best_model_score"),
    ("callbacks", "EarlyStopping", "best_score"),
    ("lr_schedulers", "plateau", "best"),
    ("metrics", "val", "minimum"),
    ("loops", "fit_loop", "smoothed"),
    ("trainer_state", "x", "best_metric"),
    ("grad_scaler", "x", "scale"),
    ("optimizer", "param_groups", "max_grad_norm"),
]


@pytest.mark.parametrize("number", [NAN, INFINITY])
@pytest.mark.parametrize("path", SCALARS)
def test_scores_and_settings_may_be_anything(make, path, number):
    a, b, c = path
    value = {"state_dict": {"w.weight": make.tensor((16, 8))}, a: {b: {c: scalar(make, 1)}}}
    answer = content(make, value, [make.floats(128), one(number)])
    assert answer.valid is True, answer


MODELS = [
    lambda t: {"state_dict": {"net.weight": t}},
    lambda t: {"model": {"w": t}, "epoch": 3},
    lambda t: {"a.weight": t},
    lambda t: {"generator": {"w": t}},
    lambda t: {"weights_of_it": t, "epoch": 3},
    lambda t: {"callbacks": {"EMA": {"ema_weights": {"net.weight": t}}}},
    lambda t: {"state_dict": {"loss_head.weight": t}},
    lambda t: {"optimizer_states": [{"state": {0: {"exp_avg": t}}, "param_groups": []}]},
    lambda t: {"anything": {"state": {0: {"moment": t}}, "param_groups": [{}]}},
    lambda t: t,
    lambda t: [t],
]


@pytest.mark.parametrize("number", [NAN, INFINITY])
@pytest.mark.parametrize("index", range(len(MODELS)))
def test_weights_and_moments_may_not(make, index, number):
    value = MODELS[index](make.tensor((16, 8)))
    assert content(make, value, [make.floats(128)]).valid is True
    assert content(make, value, [make.floats(127) + one(number)]).valid is False


def test_a_scalar_parameter_may_not(make):
    value = {"state_dict": {"w.weight": make.tensor((16, 8)), "logit_scale": scalar(make, 1)}}
    assert content(make, value, [make.floats(128), one(2.0)]).valid is True
    assert content(make, value, [make.floats(128), one(NAN)]).valid is False


def test_what_no_tensor_shows_may_be_anything(make):
    """A view of a buffer: torch.save keeps all of the buffer."""
    stored = make.Stored(0, "float32", 128)
    hooks = make.Call("collections", "OrderedDict")
    view = make.Call("torch._utils", "_rebuild_tensor_v2", stored, 32, (8, 4), (4, 1), False, hooks)
    columns = make.Call("torch._utils", "_rebuild_tensor_v2", stored, 0, (16, 4), (8, 1), False, hooks)
    good = bytearray(make.floats(128))
    bad = bytearray(good)
    bad[4 * 127 :] = one(NAN)
    assert content(make, {"model": {"w": view}}, [bytes(bad)]).valid is True
    assert content(make, {"model": {"w": columns}}, [bytes(bad)]).valid is True
    bad = bytearray(good)
    bad[4 * 40 : 4 * 41] = one(NAN)  # element 40: row 5, column 0
    assert content(make, {"model": {"w": view}}, [bytes(bad)]).valid is False
    assert content(make, {"model": {"w": columns}}, [bytes(bad)]).valid is False


def mask(size, share):
    return b"".join(one(-INFINITY if i < share * size else 0.0) for i in range(size))


def test_masks_of_a_model_are_no_damage_and_single_infinities_are(make):
    good = make.floats(128)
    value = {"model": {"w": make.tensor((16, 8)), "bias": make.tensor((8, 8), key=1)}}
    assert content(make, value, [good, mask(64, 0.4)]).valid is True
    assert content(make, value, [good, mask(64, 0.01)]).valid is False


BUFFERS = [
    ("logit_bias", (6,), [0.0, -INFINITY, 0.0, 0.0, 0.0, 0.0]),
    ("suppress_tokens", (6,), [-INFINITY, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ("observer.running_min", (8,), [INFINITY] * 8),
    ("observer.running_max", (8,), [-INFINITY] * 8),
    ("attn.cache_k", (2, 4), [NAN] * 8),
    ("attn.kv_cache.k", (8,), [NAN] * 8),
]


@pytest.mark.parametrize(("name", "size", "numbers"), BUFFERS)
def test_buffers_that_are_not_set_or_forbid_a_few_tokens(make, name, size, numbers):
    def valid(name):
        value = {"state_dict": {"w.weight": make.tensor((16, 8)), name: make.tensor(size, key=1)}}
        return content(make, value, [make.floats(128), b"".join(map(one, numbers))]).valid

    assert valid(name) is True
    assert valid("head.bias") is False
    assert valid("cache.weight") is False


@pytest.mark.parametrize(
    "numbers", [[INFINITY] * 7 + [1.0], [INFINITY] * 7 + [-INFINITY], [NAN] * 8, [0.0] * 7 + [INFINITY]]
)
def test_single_infinities_in_a_buffer_are_no_setting(make, numbers):
    value = {"state_dict": {"w.weight": make.tensor((16, 8)), "observer.running_min": make.tensor((8,), key=1)}}
    assert content(make, value, [make.floats(128), b"".join(map(one, numbers))]).valid is False


@pytest.mark.parametrize("name", ["exp_avg_sq", "max_exp_avg_sq", "exp_avg_sq_row", "square_avg"])
def test_an_average_of_squares_is_not_negative(make, name):
    """As it is where Adam's two moments changed places, or the weights were put there."""
    value = {"optimizer": {"state": {0: {"exp_avg": make.tensor((16, 8)), name: make.tensor((16, 8), key=1)}}}}
    signed = b"".join(map(one, [0.25] * 126 + [-0.0, -0.25]))
    squares = b"".join(map(one, [0.25] * 126 + [-0.0, 0.0]))
    assert content(make, value, [signed, squares]).valid is True
    answer = content(make, value, [squares, signed])
    assert answer.valid is False and "negative" in answer.reason


@pytest.mark.parametrize(
    ("dtype", "below_zero"),
    [("float32", "000080bf"), ("float64", "000000000000f0bf"), ("bfloat16", "80bf"), ("float16", "00bc"),
     ("float8_e4m3fn", "b8"), ("complex64", "000080bf")],
)  # fmt: skip
def test_numbers_below_zero_in_every_type(dtype, below_zero):
    low = bytes.fromhex(below_zero)
    zero = bytes(len(low) - 1) + b"\x80"
    for data, found in ((low * 4, True), (zero * 4, False), (bytes(len(low) * 4), False)):
        scan = FloatScan(Look(dtype, squares=True))
        scan.feed(memoryview(data))
        assert scan.negative is found
        scan = FloatScan(Look(dtype))
        scan.feed(memoryview(data))
        assert not scan.negative and not scan.finding


def test_a_scale_without_a_sign_is_not_negative():
    scan = FloatScan(Look("float8_e8m0fnu", squares=True))
    scan.feed(memoryview(b"\x80\x90"))
    assert not scan.finding


def test_zeros_and_negative_infinity_are_no_mask_in_an_optimizer(make):
    value = {"optimizer": {"state": {0: {"exp_avg": make.tensor((8, 8))}}, "param_groups": []}}
    assert content(make, value, [mask(64, 0.4)]).valid is False


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("optimizer_states", Role.OPTIMIZER),
        ("opt_param_scheduler.x", Role.OTHER),
        ("app.optimizer.state.w.exp_avg", Role.OPTIMIZER),
        ("optimizer.param_groups.0.lr", Role.OTHER),
        ("model.loss_fn.weight", Role.MODEL),
        ("hyper_parameters.x", Role.OTHER),
        ("layers.0.attention.wq.weight", Role.MODEL),
        ("train_state.ntokens_seen", Role.OTHER),
        ("history_proj.weight", Role.MODEL),
    ],
)
def test_roles_by_name(path, role):
    assert role_of(path.split(".")) is role


@pytest.mark.parametrize("width", [2, 4, 8])
def test_complex_numbers_are_looked_at(width):
    kind = {2: "complex32", 4: "complex64", 8: "complex128"}[width]
    code = {2: "e", 4: "f", 8: "d"}[width]
    scan = FloatScan(Look(kind))
    scan.feed(memoryview(struct.pack(f"<4{code}", 1, 2, 3, 4)))
    assert scan.finding == ""
    scan.feed(memoryview(struct.pack(f"<4{code}", 1, 2, 3, NAN)))
    assert scan.finding == "NaN"


def test_a_view_knows_its_elements():
    view = View(3, (2, 3), (8, 2))
    shown = {3 + 8 * i + 2 * j for i in range(2) for j in range(3)}
    assert {n for n in range(40) if view.shows(n)} == shown
    assert View(5, (3, 4), (4, 1)).dense() == (5, 17)
    assert View(5, (4, 3), (1, 4)).dense() == (5, 17)
    assert view.dense() is None


def test_a_score_at_the_top_beside_a_flat_model():
    assert look_at(("best_loss",), "float32", (), role_of(("best_loss",)), in_model=False) is None
    assert look_at(("norm", "weight"), "float32", (5,), role_of(("norm", "weight")), in_model=True) is not None
