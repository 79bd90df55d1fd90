"""The python layout of CIFAR-10, read without unpickling it. Needs neither torch nor numpy.

A batch is a pickle of a dictionary with ``data``, a numpy array uint8 [N, 3072], and ``labels``, a
list of N whole numbers. A pickle is a small program, and an unpickler runs it. This module only
walks through its instructions: it knows those few that build dictionaries, lists, tuples, numbers
and text, and *describes* an array where the pickle would have numpy build one. Nothing that the
file names is looked up, imported or called, so there is nothing that it could misuse; every other
instruction and name is refused.
"""

from __future__ import annotations

import pickletools
import warnings
from dataclasses import dataclass
from typing import Any

PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS
CLASSES = 10
MOST_STEPS = 1_000_000
"""A published batch takes some 40,000; a file that takes more is none."""

_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_BUFFER_MODULES = ("numpy.core.numeric", "numpy._core.numeric")
_NAMES = {
    **{f"{module} _reconstruct": "array" for module in _ARRAY_MODULES},
    **{f"{module} _frombuffer": "buffer" for module in _BUFFER_MODULES},
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class NotABatchError(ValueError):
    """The content is no batch of CIFAR-10; the message says why in a few words."""


@dataclass(frozen=True)
class _Name:
    """Something that the pickle names, as what it stands for here."""

    meaning: str


@dataclass
class _Array:
    """What is known of an array of unsigned bytes."""

    shape: Any = None
    content: Any = None
    unsigned_bytes: bool = False


@dataclass(frozen=True)
class _Dtype:
    code: Any


_MARK = object()


def records_of_pickle(content: bytes) -> bytearray:
    """Turn a batch in the python layout into records of the binary layout: a label, 3072 pixels.

    Raises :class:`NotABatchError` for everything else.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on escapes in damaged text, which is refused anyway
            found = _Walk().run(content)
    except NotABatchError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, UnicodeError, OverflowError) as error:
        raise NotABatchError(f"damaged, or no pickle of a batch ({error})") from None
    if not isinstance(found, dict):
        raise NotABatchError(f"holds a {type(found).__name__}, wanted data and labels")
    # files written by Python 2 have text, later ones bytes
    data = found.get("data", found.get(b"data"))
    labels = found.get("labels", found.get(b"labels"))
    if not isinstance(data, _Array) or not isinstance(labels, list):
        raise NotABatchError("has no array named data and list named labels")
    return _records(_pixels(data), labels)


def _pixels(data: _Array) -> bytes:
    content = data.content
    if isinstance(content, str):  # Python 2 had bytes as text
        content = content.encode("latin-1", errors="replace")
    if not data.unsigned_bytes or not isinstance(content, (bytes, bytearray)):
        raise NotABatchError("data is no array of unsigned bytes")
    shape = data.shape
    if not isinstance(shape, tuple) or shape != (len(content) // PIXELS, PIXELS):
        raise NotABatchError(f"data has shape {str(shape)[:60]}, wanted (N, {PIXELS})")
    if len(content) != shape[0] * PIXELS:
        raise NotABatchError(f"data has {len(content)} bytes, wanted {shape[0] * PIXELS}")
    return bytes(content)


def _records(pixels: bytes, labels: list[Any]) -> bytearray:
    count = len(pixels) // PIXELS
    if len(labels) != count:
        raise NotABatchError(f"holds {count} images and {len(labels)} labels")
    if not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise NotABatchError(f"has labels that are not whole numbers from 0 to {CLASSES - 1}")
    records = bytearray(count * RECORD)
    records[::RECORD] = bytes(labels)
    for n in range(count):
        records[n * RECORD + 1 : (n + 1) * RECORD] = pixels[n * PIXELS : (n + 1) * PIXELS]
    return records


class _Walk:
    """A walk through the instructions of a pickle, with its stack and its memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """Walk to the end and give what is left."""
        for step, (instruction, argument, _) in enumerate(pickletools.genops(content)):
            if step >= MOST_STEPS:
                raise NotABatchError("has far more instructions than a batch takes")
            if instruction.name == "STOP":
                return self.stack.pop()
            self._step(instruction.name, argument)
        raise NotABatchError("is cut short")

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in ("PROTO", "FRAME"):
            pass
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            stack.append(_MARK)
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _TUPLES:
            count = _TUPLES[name]
            parts = [stack.pop() for _ in range(count)][::-1]
            stack.append(tuple(parts))
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in ("EMPTY_LIST", "LIST"):
            stack.append(self._since_mark() if name == "LIST" else [])
        elif name in ("APPEND", "APPENDS"):
            values = self._since_mark() if name == "APPENDS" else [stack.pop()]
            _expect(list, stack[-1]).extend(values)
        elif name in ("EMPTY_DICT", "DICT"):
            stack.append(_pairs(self._since_mark()) if name == "DICT" else {})
        elif name in ("SETITEM", "SETITEMS"):
            values = self._since_mark() if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
            _expect(dict, stack[-1]).update(_pairs(values))
        elif name == "GLOBAL":
            stack.append(_named(argument))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(_named(f"{module} {attribute}"))
        elif name == "REDUCE":
            arguments = _expect(tuple, stack.pop())
            stack.append(_described(stack.pop(), arguments))
        elif name == "BUILD":
            state = stack.pop()
            _fill(stack[-1], state)
        else:
            raise NotABatchError(f"has the instruction {name}, which no batch has")

    def _since_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]


def _expect(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise NotABatchError(f"damaged: a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _pairs(values: list[Any]) -> dict[Any, Any]:
    if not all(isinstance(key, (str, bytes)) for key in values[::2]):
        raise NotABatchError("has entries without a name")
    return dict(zip(values[::2], values[1::2], strict=True))


def _named(name: str) -> _Name:
    if name not in _NAMES:
        raise NotABatchError(f"asks for {name.replace(' ', '.')[:80]!r}, which no batch needs")
    return _Name(_NAMES[name])


def _described(what: Any, arguments: tuple[Any, ...]) -> Any:
    """What the pickle would have built by a call."""
    meaning = what.meaning if isinstance(what, _Name) else None
    if meaning == "array":  # still without content, which BUILD brings
        return _Array()
    if meaning == "dtype" and arguments:
        return _Dtype(arguments[0])
    if meaning == "encode" and len(arguments) == 2 and arguments[1] in ("latin1", "latin-1"):
        return _expect(str, arguments[0]).encode("latin-1")
    if meaning == "buffer" and len(arguments) == 4 and arguments[3] == "C":
        content, dtype, shape, _ = arguments
        return _Array(shape, content, _is_unsigned_byte(dtype))
    raise NotABatchError("asks for a call that no batch needs")


def _fill(target: Any, state: Any) -> None:
    """What the pickle would have put into an object."""
    if isinstance(target, _Dtype):
        return  # order of bytes and the like: of no account for single bytes
    if not isinstance(target, _Array) or not isinstance(state, tuple) or len(state) != 5:
        raise NotABatchError("fills something that is no array")
    _, shape, dtype, columns_first, content = state
    if columns_first:
        raise NotABatchError("has data in the order of columns")
    target.shape, target.content = shape, content
    target.unsigned_bytes = _is_unsigned_byte(dtype)


def _is_unsigned_byte(dtype: Any) -> bool:
    return isinstance(dtype, _Dtype) and dtype.code in ("u1", b"u1", "|u1")
