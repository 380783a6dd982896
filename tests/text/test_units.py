import pytest

from essim.text.units import format_bytes, format_seconds, parse_quantity


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("8 us", "seconds", 8e-6),
        ("8µs", "seconds", 8e-6),
        ("0.5 ms", "seconds", 5e-4),
        ("55 GB/s", "bytes/s", 55e9),
        ("1e9 B/s", "bytes/s", 1e9),
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 85899345920.0),
        ("989 TFLOP/s", "FLOP/s", 989e12),
    ],
)
def test_a_quantity_is_an_si_number(text: str, dimension: str, value: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "message"),
    [
        (8, "seconds", "8 has no unit"),
        (80e9, "bytes", "has no unit"),
        ("80", "bytes", "not a quantity in bytes"),
        ("8 us", "bytes", "unknown unit 'us' for bytes"),
        ("8 GB", "bytes/s", "unknown unit 'GB' for bytes/s"),
        ("8 gb", "bytes", "unknown unit 'gb'"),
        ("fast", "bytes/s", "not a quantity"),
        (None, "seconds", "has no unit"),
        ("nan s", "seconds", "not a quantity"),
    ],
)
def test_anything_else_is_an_error_that_says_how_to_write_it(text, dimension, message) -> None:
    with pytest.raises(ValueError, match=message):
        parse_quantity(text, dimension)


def test_formats_for_people() -> None:
    values = (0.0, 3.3e-6, 0.0047, 1.5, 250.0, None)
    assert [format_seconds(v) for v in values] == ["0 s", "3.3 us", "4.7 ms", "1.5 s", "250 s", "-"]
    assert [format_bytes(v) for v in (5, 2048, 5.3 * 2**30, None)] == [
        "5 B",
        "2.00 KiB",
        "5.30 GiB",
        "-",
    ]


def test_both_signs_of_micro_are_microseconds() -> None:
    assert parse_quantity("1.5 \u00b5s", "seconds") == pytest.approx(1.5e-6)
    assert parse_quantity("1.5 \u03bcs", "seconds") == pytest.approx(1.5e-6)
