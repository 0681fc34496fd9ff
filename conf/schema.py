"""What a composed config is: every field with its type, its range and its unit.

Strict on purpose: an unknown key, `1e3` for an integer, NaN or a float where an id belongs is an error here, before
anything is computed or written. Which fields enter an artifact's key is not decided here but by each stage (`reads`).
"""

from dataclasses import field
from typing import Annotated, Literal

import pydantic
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

import model.recipe

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Count = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Id = Annotated[str, Field(pattern=r"^[a-z][\w.-]*$")]
Seed = Annotated[int, Field(ge=0, lt=2**31)]

Recipe = pydantic.dataclasses.dataclass(model.recipe.Recipe, config=STRICT, frozen=True)


@dataclass(config=STRICT, frozen=True)
class Scale:
    """The size of the model. Depth is the dial: what is None follows from it (`model.sizing`)."""

    depth: Annotated[int, Field(ge=1, le=128)]
    aspect: Count = 64  # n_embd = depth · aspect, rounded up to a multiple of head_dim
    head_dim: Annotated[int, Field(ge=2, le=512, multiple_of=2)] = 128
    n_kv_head: Count | None = None  # None: as many as query heads
    seq_len: Annotated[int, Field(ge=8)] = 2048  # tokens
    window_pattern: Annotated[str, Field(pattern=r"^[SL]+$")] = "SSSL"
    ratio: Positive | None = None  # target tokens per scaling parameter; None: the recipe's


@dataclass(config=STRICT, frozen=True)
class World:
    """Sizes of the generated sample world (`tasks.world`). Facts grow with people, places and things; a bigger world
    needs a longer run to be learnt."""

    people: Annotated[int, Field(ge=8, le=120)] = 20
    places: Annotated[int, Field(ge=4, le=12)] = 8
    things: Annotated[int, Field(ge=4, le=32)] = 16
    documents: Count = 16_000  # of the training split, some 40 tokens each
    val_documents: Count = 400
    conversations: Count = 7000  # for fine-tuning
    questions: Annotated[int, Field(ge=8)] = 100  # of each evaluation task at most
    seed: Seed | None = (
        None  # which world it is; None: the run's seed if the corpus is the world (`conf.resolve`), else 0
    )


@dataclass(config=STRICT, frozen=True)
class Data:
    """Where documents come from."""

    kind: Literal["world", "files", "climbmix"]
    paths: list[str] = field(default_factory=list)  # files: local paths, globs, gs://, https://, hf://
    val_paths: list[str] = field(default_factory=list)  # empty: the last `val_shards` of `paths`
    val_shards: Count = 1
    text_key: str = "text"  # the field or column that holds the document
    max_shards: Count | None = None  # None: as many as the horizon needs (climbmix), else all
    allow_repeat: bool = False  # accept more than one epoch
    world: World = field(default_factory=World)


@dataclass(config=STRICT, frozen=True)
class Hosts:
    """The hosts of one training job. The same command runs on each of them (`tasks.hosts`).

    The first one owns the artifacts; the others train along, and wait where a stage runs on one host alone.
    """

    names: list[str] | Literal["auto"] = field(default_factory=list)  # by rank; empty: one process; auto: a TPU slice's
    # Of the first host; firewall rules of TPU slices let it through, JAX's own choice since 0.8.1 not (jax#35905).
    port: Annotated[int, Field(ge=1, le=65535)] = 8476
    start_minutes: Positive = 10.0  # that the hosts wait for each other before a stage
    wait_minutes: Positive = 60.0  # that the others wait without a sign of life from the first one
    alone: dict[str, str] = field(default_factory=dict)  # environment of a stage that runs on the first host alone


@dataclass(config=STRICT, frozen=True)
class Hardware:
    """What the run is rented on. Changes cost and speed, never a result."""

    name: str
    platform: Literal["cpu", "tpu", "gpu"]
    chips: Count
    hbm_gib: Positive  # memory of one chip, GiB
    peak_flops: Positive | None  # bf16 FLOP/s of one chip; None: no MFU is shown
    matrix_unit: Count  # side of the matrix unit: head_dim and widths should be multiples
    spot_price: Annotated[float, Field(ge=0)]  # US$ per chip-hour
    on_demand_price: Annotated[float, Field(ge=0)]  # US$ per chip-hour
    price_date: str  # the day the prices were read
    topology: str | None = None  # the name that ahead-of-time compilation takes, such as v6e:2x4
    expected_mfu: Share = 0.3  # share of peak assumed by `flows.plan`
    preemption_notice: str | None = None  # metadata address to poll; None: SIGTERM alone
    hosts: Hosts = field(default_factory=Hosts)


@dataclass(config=STRICT, frozen=True)
class Store:
    """Where artifacts live."""

    root: Annotated[str, Field(min_length=1)]  # a directory or gs://bucket/prefix
    cache_dir: str = "~/.cache/encore"  # local copies of remote files, and the compilation cache
    cache_gib: Positive = 100.0
    lease_seconds: Annotated[float, Field(ge=1)] = 60.0
    strict_code: bool = False  # a changed source file of a stage makes its artifact a miss


@dataclass(config=STRICT, frozen=True)
class TokenizerConfig:
    """Byte-level BPE training."""

    vocab_size: Annotated[int, Field(ge=265, le=2**31 - 1)]  # 256 bytes and nine special tokens at least
    max_chars: Count = 2_000_000_000  # characters of text to train on
    doc_cap: Count = 10_000  # characters of one document to train on


@dataclass(config=STRICT, frozen=True)
class ShardsConfig:
    """Packing of documents into rows of seq_len + 1 tokens."""

    buffer_docs: Count = 1000  # documents that best fit chooses from
    # A document longer than a row is cropped when nothing else fits, as nanochat does; or split into rows beforehand.
    long_documents: Literal["crop", "split"] = "crop"
    workers: NonNegative = 0  # processes; 0: one per core


@dataclass(config=STRICT, frozen=True)
class Checkpoint:
    """How often training can be resumed from."""

    every_steps: Count = 250  # the most that a kill costs; a save begins every half of them
    every_minutes: Positive = 15.0  # or after so long, if that is sooner
    keep: Count = 2  # newest ones; the best by val bpb is kept besides
    max_failure_minutes: Positive = 60.0  # age of the last good save at which failing saves become fatal


@dataclass(config=STRICT, frozen=True)
class BaseConfig:
    """Pretraining."""

    steps: Count | None = None  # None: the horizon that depth and ratio give
    total_batch_tokens: Count | None = None  # tokens per optimizer step; None: the recipe's rule
    device_batch_rows: Count | None = None  # rows per device and micro-batch; None: what memory allows
    eval_every: Count = 250  # steps between evaluations of val bpb
    eval_tokens: Count = 20 * 524_288  # tokens per evaluation
    sample_every: Count = 2000  # steps between samples
    log_every: Count = 10  # steps between plain progress lines
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


@dataclass(config=STRICT, frozen=True)
class Mesh:
    """Devices by axis; one axis may be -1: the rest."""

    data: Annotated[int, Field(ge=-1)] = -1
    fsdp: Annotated[int, Field(ge=-1)] = 1
    tensor: Annotated[int, Field(ge=-1)] = 1

    def __post_init__(self) -> None:
        axes = (self.data, self.fsdp, self.tensor)
        if 0 in axes:
            raise ValueError("an axis has at least one device; -1 takes the rest")
        if axes.count(-1) > 1:
            raise ValueError("only one axis can be -1, the rest; give the others a number (data is -1 by default)")


@dataclass(config=STRICT, frozen=True)
class Compute:
    """How the mathematics is carried out (`model.recipe.Compute`)."""

    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    param_dtype: Literal["float32"] = "float32"  # bfloat16 would round most updates away
    attention: Literal["auto", "xla", "splash", "cudnn"] = "auto"
    loss_chunk: Count = 512  # tokens whose logits exist at one time
    remat: Literal["none", "full", "dots"] = "none"
    layer_loop: Literal["unrolled", "scan"] = "unrolled"
    mesh: Mesh = field(default_factory=Mesh)


@dataclass(config=STRICT, frozen=True)
class MixtureItem:
    """One source of conversations."""

    path: str  # "world", or a file, glob, gs://, https:// or hf:// path of JSON lines
    format: Literal["messages", "gsm8k", "multiple_choice"] = "messages"
    weight: Positive = 1.0  # epochs of it in the mixture; 0.5 takes a half
    limit: Count | None = None  # conversations taken from the start of the shuffled source


@dataclass(config=STRICT, frozen=True)
class SftConfig:
    """Supervised fine-tuning on conversations."""

    mixture: list[MixtureItem]
    steps: Count | None = None  # None: `epochs` over the packed rows
    epochs: Positive = 1.0
    total_batch_tokens: Count | None = None  # None: as base
    device_batch_rows: Count | None = None
    val_share: Annotated[float, Field(gt=0, lt=0.5)] = 0.02  # conversations held out for the validation loss
    overlong: Literal["skip", "truncate"] = "truncate"  # conversations longer than a row
    warm_optimizer: bool = True  # start from base's optimizer moments
    lr_scale: Positive = 0.8  # all rates relative to base
    warmdown_ratio: Share = 0.5
    eval_every: Count = 100
    eval_tokens: Count = 2 * 524_288
    log_every: Count = 10
    checkpoint: Checkpoint = field(default_factory=Checkpoint)


@dataclass(config=STRICT, frozen=True)
class EvalConfig:
    """CORE: the tasks of an evaluation bundle."""

    bundle: str  # "world", a directory, gs:// prefix, or https:// zip
    tasks: list[str] | None = None  # None: all of the bundle
    max_per_task: Count | None = None  # None: every example
    truncation: Literal["none", "left"] = "none"  # prompts longer than the context; nanochat runs them whole
    batch_tokens: Count | None = None  # room of one call, tokens; None: 4,096 on a CPU, 32,768 a device elsewhere
    bootstrap_samples: Count = 1000


ChatTaskName = Literal[
    "world", "arc_easy", "arc_challenge", "mmlu", "gsm8k", "humaneval", "spellingbee", "simple_spelling"
]


@dataclass(config=STRICT, frozen=True)
class ChatConfig:
    """Answers after SFT."""

    tasks: list[ChatTaskName]
    data_dir: str  # "world", a directory, gs:// or https:// prefix with the tasks' <name>.jsonl.gz
    word_list: str | None = None  # words of the spelling tasks, one a line; None: words_alpha.txt.gz in data_dir
    max_per_task: Count | None = None
    num_samples: Count = 1
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_k: Count | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_new_tokens: Count = 512
    batch_rows: Count = 32  # prompts that are answered at a time
    allow_code_execution: bool = False  # HumanEval runs generated programs, in a sandbox where there is one
    bootstrap_samples: Count = 1000


@dataclass(config=STRICT, frozen=True)
class PromptsConfig:
    """Qualitative prompts, answered by base and SFT and judged."""

    sets: list[str]  # names of files in conf/prompts, or "world"
    digest: str | None = None  # of those files, so that a changed prompt is a new key; filled in by conf.resolve
    max_new_tokens: Count = 128


@dataclass(config=STRICT, frozen=True)
class ReportConfig:
    """The report."""

    title: str = "Encore"
    spot: bool = True  # the price that costs are shown at


@dataclass(config=STRICT, frozen=True)
class FlowConfig:
    """How stages are run and retried; never part of a key."""

    retries: NonNegative = 3  # of a stage that failed or was preempted
    retry_seconds: Annotated[float, Field(ge=0)] = 10.0
    grace_seconds: Positive = 30.0  # for a stage to save and leave after SIGTERM


@dataclass(config=STRICT, frozen=True)
class Config:
    """One run of the cycle."""

    name: Id
    seed: Seed
    recipe: Recipe  # type: ignore[valid-type]
    scale: Scale
    data: Data
    hardware: Hardware
    store: Store
    tokenizer: TokenizerConfig
    shards: ShardsConfig
    base: BaseConfig
    compute: Compute
    sft: SftConfig
    eval: EvalConfig
    chat: ChatConfig
    prompts: PromptsConfig
    report: ReportConfig
    flow: FlowConfig
