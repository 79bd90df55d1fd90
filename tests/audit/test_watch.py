"""Audits in a training loop: what is logged, where, when, and that no trace is left."""

import warnings
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from twin import left_alone

import mahalens
from mahalens import InputError, Watch

FAULTS = ("dead", "rare", "saturated", "duplicate", "mirrored")


def samples():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def planted():
    """A network with a dead unit 0, units 2 and 3 that repeat 1, and 4 that mirrors 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
    with torch.no_grad():
        model[0].bias[0] = -99.0
        for copy, sign in ((2, 1), (3, 1), (4, -1)):
            model[0].weight[copy] = sign * model[0].weight[1]
            model[0].bias[copy] = sign * model[0].bias[1]
    return model


def test_counts_are_those_of_the_audit():
    watch, model = Watch(samples()), planted()
    for part in (model[3].weight.data, model[3].bias.data):  # a fault in the second layer too
        part[1] = part[0]
    metrics, record = watch(model, 0), mahalens.audit(model, samples())
    counts = {name: metrics[f"audit/{name}"] for name in FAULTS}
    rare = sum(len(layer.units.rare["0.05"]) for layer in record.layers)
    assert counts == dict(zip(FAULTS, (1, rare, 0, 2 + 1, 1), strict=True))
    assert (metrics["audit/dead/0"], metrics["audit/dead/3"]) == (1, 0)
    for name, count in counts.items():
        assert count == metrics[f"audit/{name}/0"] + metrics[f"audit/{name}/3"]
    assert metrics["audit/accuracy"] == record.accuracy
    assert watch.record.layers[0].units.dead == record.layers[0].units.dead == (0,)


def test_saturated_units_are_counted_and_without_labels_there_is_no_accuracy():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid())
    nn.init.constant_(model[0].bias, 60.0)
    metrics = Watch(samples()[0])(model, 0)
    assert metrics["audit/saturated"] == 4
    assert "audit/accuracy" not in metrics


def test_options_go_to_the_audit():
    watch = Watch(samples(), layers=["0"], examples=True)
    assert "audit/dead/3" not in watch(planted(), 0)
    assert watch.record.examples is not None


def test_every_few_epochs_it_audits_and_shows_its_history():
    watch, model = Watch(samples(), every=3), planted()
    assert repr(watch) == "Watch(every=3, no audits yet)"
    done = [watch(model, epoch) is not None for epoch in range(7)]
    assert done == [True, False, False, True, False, False, True]
    assert list(watch.history) == [0, 3, 6]
    assert "3 audits; epoch 6: 1 dead" in repr(watch)
    assert "<td>6</td><td>1</td>" in watch._repr_html_()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"every": every}, "every is .*, wanted a whole number")
            for every in (0, -1, 1.5, True, None)
        ),
        ({"log": 3}, "log is a int"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        Watch(samples(), **options)


class TestNoTrace:
    def test_training_is_the_same_with_and_without(self):
        """Dropout and a shuffled loader would show any random number that an audit draws."""
        x, y = samples()
        every = []
        for watched in (False, True):
            model = planted()
            torch.manual_seed(7)
            loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
            watch = Watch(loader)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for epoch in range(3):
                for inputs, labels in loader:
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(model(inputs), labels).backward()
                    optimiser.step()
                if watched:
                    watch(model, epoch)
            every.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert torch.equal(*every)

    @pytest.mark.parametrize("training", [True, False])
    def test_nothing_of_the_model_or_of_random_states_changes(self, training):
        model = planted().train(training)
        model[2].eval()
        model(samples()[0]).sum().backward()
        with left_alone(model):
            Watch(samples())(model, 0)


class TestLogs:
    def test_a_function(self):
        calls = []
        watch = Watch(samples(), log=lambda metrics, epoch: calls.append((epoch, metrics)))
        metrics = watch(planted(), 5)
        assert calls == [(5, metrics)]

    def test_tensorboard(self, tmp_path):
        event_accumulator = pytest.importorskip(
            "tensorboard.backend.event_processing.event_accumulator"
        )
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            watch = Watch(samples(), every=2, log=writer)
            for epoch in range(3):
                watch(planted(), epoch)
        events = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
        assert [(e.step, e.value) for e in events.Scalars("audit/dead")] == [(0, 1.0), (2, 1.0)]
        assert "audit/duplicate/0" in events.Tags()["scalars"]

    @pytest.mark.slow
    def test_weights_and_biases(self, tmp_path, monkeypatch):
        for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path)}.items():
            monkeypatch.setenv(f"WANDB_{name}", value)
        wandb = pytest.importorskip("wandb")
        run = wandb.init(project="mahalens-test", dir=str(tmp_path))
        try:
            Watch(samples(), log=run)(planted(), 4)
            assert run.summary["audit/dead"] == 1
            assert run.summary["epoch"] == 4
        finally:
            run.finish()


@pytest.mark.parametrize(
    ("library", "make"),
    [("lightning", lambda w: w.lightning()), ("transformers", lambda w: w.huggingface(None))],
)
def test_a_missing_library_is_one_line_that_names_the_extra(library, make, monkeypatch):
    monkeypatch.setattr(
        "mahalens.errors.find_spec", lambda name: None if name == library else find_spec(name)
    )
    with pytest.raises(InputError, match=r"mahalens\[training\]") as error:
        make(Watch(samples()))
    assert library in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # in Lightning
def test_lightning(tmp_path):
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import EarlyStopping
    from lightning.pytorch.loggers import CSVLogger

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = planted()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def train(callbacks):
        torch.manual_seed(0)
        model = Net()
        loader = DataLoader(TensorDataset(*samples()), batch_size=30, shuffle=True)
        trainer = pl.Trainer(
            max_epochs=3,
            accelerator="cpu",
            callbacks=callbacks,
            logger=CSVLogger(tmp_path, name=str(len(callbacks))),
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            log_every_n_steps=1,
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers.*")
            trainer.fit(model, loader)
        return model, trainer

    watch = Watch(samples(), every=2)
    stopping = EarlyStopping("audit/dead", patience=9)  # refuses a metric that it cannot see
    model, trainer = train([watch.lightning(), stopping])
    assert stopping.best_score == 1
    assert list(watch.history) == [0, 2]
    assert trainer.callback_metrics["audit/dead/net.0"] == watch.history[2]["audit/dead/net.0"] == 1
    text = (tmp_path / "2" / "version_0" / "metrics.csv").read_text()
    assert "audit/duplicate" in text.splitlines()[0]
    plain, _ = train([])
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.mark.slow
def test_huggingface(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
    )
    tokens = torch.randint(20, (12, 6), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": int(row[0] > 9)} for row in tokens]

    def train(every):
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=3,
            per_device_train_batch_size=4,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        watch = Watch({"input_ids": tokens, "labels": tokens[:, 0] > 9}, every=every or 1)
        if every:
            trainer.add_callback(watch.huggingface(trainer))
        trainer.train()
        return model, trainer, watch

    model, trainer, watch = train(every=2)
    assert list(watch.history) == [0, 2]
    logged = [line for line in trainer.state.log_history if "audit/dead" in line]
    assert [line["epoch"] for line in logged] == [1.0, 3.0]
    name = "audit/dead/bert.encoder.layer.0.intermediate.dense"
    assert logged[1][name] == watch.history[2][name]
    plain, _, _ = train(every=0)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
