"""Three networks that others trained, written out so that their weight files fit.

Names of parts are those of the weight files; see ``audit_pretrained.py``.
"""

from __future__ import annotations

import unicodedata

import torch
from torch import Tensor, nn
from torch.nn import functional


class Crepe(nn.Module):
    """Pitch of a frame of 1024 samples at 16 kHz: scores [B, 360], 20 cents a step."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 128, 16, 16, 16, 32, 64]
        for number in range(1, 7):
            kernel, stride = ((512, 1), (4, 1)) if number == 1 else ((64, 1), (1, 1))
            conv = nn.Conv2d(widths[number - 1], widths[number], kernel, stride)
            self.add_module(f"conv{number}", conv)
            self.add_module(f"conv{number}_BN", nn.BatchNorm2d(widths[number], eps=1e-3))
        self.classifier = nn.Linear(256, 360)

    def forward(self, frames: Tensor) -> Tensor:
        """Frames [B, 1024] of mean 0 and spread 1 to scores from 0 to 1."""
        x = frames[:, None, :, None]
        for number in range(1, 7):
            before, after = (254, 254) if number == 1 else (31, 32)
            x = functional.pad(x, (0, 0, before, after))
            x = torch.relu(self.get_submodule(f"conv{number}")(x))
            x = self.get_submodule(f"conv{number}_BN")(x)  # after the activation, not before
            x = functional.max_pool2d(x, (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).flatten(1)))


class SpeechDetector(nn.Module):
    """Whether somebody speaks, for each 32 ms of a clip at 16 kHz."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, clips: Tensor) -> Tensor:
        """Clips [B, 512 T] to the probability of speech in each of T frames [B, T]."""
        # Each frame sees the last 64 samples of the one before.
        frames = functional.pad(clips, (64, 0)).unfold(1, 576, 512)
        state, said = None, []
        for frame in frames.unbind(1):
            x = self.stft_conv(functional.pad(frame[:, None], (0, 64), mode="reflect"))
            real, imaginary = x.chunk(2, dim=1)
            x = (real.square() + imaginary.square()).sqrt()
            for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
                x = torch.relu(conv(x))
            state = self.lstm_cell(x.squeeze(2), state)
            said.append(torch.sigmoid(self.final_conv(torch.relu(state[0])[..., None])).flatten())
        return torch.stack(said, dim=1)


class MiniLM(nn.Module):
    """Meaning of a sentence as a vector [B, 384]: BERT with 6 layers, the mean of its tokens."""

    def __init__(self, width: int = 384, layers: int = 6) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(30522, width),
                "position_embeddings": nn.Embedding(512, width),
                "token_type_embeddings": nn.Embedding(2, width),
                "LayerNorm": nn.LayerNorm(width, eps=1e-12),
            }
        )
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Block(width) for _ in range(layers))})

    def forward(self, input_ids: Tensor) -> Tensor:
        """Tokens [B, T] without padding."""
        parts = self.embeddings
        place = torch.arange(input_ids.shape[1])
        x = parts["word_embeddings"](input_ids) + parts["position_embeddings"](place)
        x = parts["LayerNorm"](x + parts["token_type_embeddings"](torch.zeros_like(input_ids)))
        for block in self.encoder["layer"]:
            x = block(x)
        return functional.normalize(x.mean(1), dim=1)


class Block(nn.Module):
    """Attention and a network of two layers, each with a norm after its sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        names = ("query", "key", "value")
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({name: nn.Linear(width, width) for name in names}),
                "output": _dense(width, width),
            }
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, 4 * width)})
        self.output = _dense(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [B, T, D] to tokens."""
        own, out = self.attention["self"], self.attention["output"]
        query, key, value = (
            own[name](x).unflatten(2, (12, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        x = out["LayerNorm"](out["dense"](mixed.flatten(2)) + x)
        inner = functional.gelu(self.intermediate["dense"](x))
        return self.output["LayerNorm"](self.output["dense"](inner) + x)


def _dense(inputs: int, outputs: int) -> nn.ModuleDict:
    return nn.ModuleDict(
        {"dense": nn.Linear(inputs, outputs), "LayerNorm": nn.LayerNorm(outputs, eps=1e-12)}
    )


class WordPieces:
    """Text to tokens: words in small letters, each cut into the longest known pieces."""

    def __init__(self, vocabulary: list[str]) -> None:
        self.known = {piece: number for number, piece in enumerate(vocabulary)}

    def __call__(self, text: str) -> list[int]:
        """Numbers of the pieces, between the marks for beginning and end."""
        pieces = ["[CLS]"]
        for word in self._words(text):
            pieces += self._cut(word)
        return [self.known[piece] for piece in [*pieces, "[SEP]"]]

    @staticmethod
    def _words(text: str) -> list[str]:
        plain = unicodedata.normalize("NFD", text.lower())
        kept = [c for c in plain if unicodedata.category(c) != "Mn"]
        apart = [f" {c} " if not c.isalnum() and not c.isspace() else c for c in kept]
        return "".join(apart).split()

    def _cut(self, word: str) -> list[str]:
        pieces, start = [], 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((e for e in ends if mark + word[start:e] in self.known), None)
            if end is None:
                return ["[UNK]"]
            pieces.append(mark + word[start:end])
            start = end
        return pieces
