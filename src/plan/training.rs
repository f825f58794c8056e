//! What the GPUs of a training step tell each other, as a list. Pure.
//!
//! `docs/step.md` has the formulas with their sources.

use serde::Serialize;

use super::{Collective, DataType};
use crate::units::Bytes;

/// Data of a bucket of gradients, unless the user says otherwise: PyTorch's `bucket_cap_mb` of
/// DistributedDataParallel.
const BUCKET_OF_DDP: Bytes = Bytes::mib(25);

/// Elements of a bucket: DeepSpeed's `reduce_bucket_size` and `allgather_bucket_size`.
const BUCKET_OF_ZERO: u64 = 500_000_000;

/// A model by its public dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// As its publisher calls it, in lower case.
    pub name: &'static str,
    /// All parameters.
    pub parameters: u64,
    /// Layers of the transformer.
    pub layers: u32,
    /// Width of what goes from layer to layer.
    pub hidden: u64,
    /// Tokens of a sequence in training.
    pub sequence: u64,
}

/// Models by name: Llama Team, "The Llama 3 Herd of Models" (arXiv 2407.21783), table 3 and section
/// 3.4. The parameters follow from the dimensions there and 128 256 tokens, as a test shows.
pub const MODELS: [Model; 3] = [
    Model {
        name: "llama-3-8b",
        parameters: 8_030_261_248,
        layers: 32,
        hidden: 4096,
        sequence: 8192,
    },
    Model {
        name: "llama-3-70b",
        parameters: 70_553_706_496,
        layers: 80,
        hidden: 8192,
        sequence: 8192,
    },
    Model {
        name: "llama-3-405b",
        parameters: 405_853_388_800,
        layers: 126,
        hidden: 16384,
        sequence: 8192,
    },
];

/// What each rank of a data-parallel group keeps of the model's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sharding {
    /// All of it: DistributedDataParallel
    Ddp,
    /// A part of the optimizer's state
    Zero1,
    /// A part of the gradients too
    Zero2,
    /// A part of the parameters too: FSDP, and ZeRO-3
    Zero3,
}

/// What is kept in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// The parameters; only with zero3
    Params,
    /// The optimizer's state, and with it the update; only with zero2 and zero3
    Optimizer,
}

/// A training step.
#[derive(Clone, Debug)]
pub struct Training {
    /// All parameters of the model.
    pub parameters: u64,
    /// Its layers.
    pub layers: u32,
    /// Width of what goes from layer to layer, if known.
    pub hidden: Option<u64>,
    /// Tokens of a sequence, if known.
    pub sequence: Option<u64>,
    /// Of parameters, activations and gradients.
    pub data_type: DataType,
    /// How the model's state is kept.
    pub sharding: Sharding,
    /// All GPUs.
    pub ranks: u32,
    /// GPUs that share each layer.
    pub tensor: u32,
    /// Groups of layers, each on GPUs of its own.
    pub pipeline: u32,
    /// Micro-batches of each data-parallel replica.
    pub micro_batches: u64,
    /// Sequences of a micro-batch.
    pub micro_batch_size: u64,
    /// Data of a bucket.
    pub bucket: Option<Bytes>,
    /// What is in host memory.
    pub offload: Vec<Offload>,
}

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Phase {
    /// From the first layer to the last.
    Forward,
    /// Back.
    Backward,
    /// The optimizer's.
    Update,
}

/// How data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// From the GPU to host memory.
    ToHost,
    /// From host memory to the GPU.
    FromHost,
    /// Among GPUs.
    #[serde(untagged)]
    Collective(Collective),
}

/// The GPUs that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Group {
    /// Those that have the same part of the model.
    Data,
    /// Those that share layers.
    Tensor,
    /// Those with the layers before and behind.
    Pipeline,
    /// Each by itself.
    Own,
}

/// What is done in a step, again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Communication {
    /// When.
    pub phase: Phase,
    /// What is moved.
    pub what: &'static str,
    /// How.
    pub way: Way,
    /// Among whom.
    pub group: Group,
    /// How many they are.
    pub ranks: u32,
    /// The size of one operation, as nccl-tests counts it.
    pub size: Bytes,
    /// How often in a step.
    pub times: u64,
}

impl Communication {
    /// What a rank sends in a step, or copies: the least that goes through its link, in bytes.
    pub fn moved(&self) -> f64 {
        let factor = match self.way {
            Way::Collective(collective) => collective.busbw_factor(self.ranks).unwrap_or(0.0),
            Way::ToHost | Way::FromHost => 1.0,
        };
        self.size.get() as f64 * self.times as f64 * factor
    }
}

impl Training {
    /// The GPUs that have the same part of the model, each with data of its own.
    pub const fn replicas(&self) -> u32 {
        self.ranks / (self.tensor * self.pipeline)
    }

    /// The communication of one GPU in the middle of the pipeline, in the order in which it begins;
    /// or why there is no such step.
    ///
    /// # Errors
    ///
    /// A sentence: what does not fit together, and what to give.
    pub fn step(&self) -> Result<Vec<Communication>, String> {
        self.check()?;
        let mut list = List { all: Vec::new(), phase: Phase::Forward };
        let layers = u64::from(self.layers.div_ceil(self.pipeline));
        let own = self.parameters / u64::from(self.tensor * self.pipeline);
        let (each, replicas) = (self.data_type.size().get(), self.replicas());
        let (part, batches) = (own / u64::from(replicas), self.micro_batches);
        let is_sharded = self.sharding == Sharding::Zero3 && replicas > 1;
        let [offloads_params, offloads_optimizer] =
            [Offload::Params, Offload::Optimizer].map(|what| self.offload.contains(&what));
        let of_layers = |all: u64| split(all, layers, each, batches);
        let passed = self.activation(each);
        for phase in [Phase::Forward, Phase::Backward] {
            list.phase = phase;
            if offloads_params {
                list.add("parameters", Way::FromHost, (Group::Own, 1), of_layers(part));
            }
            if is_sharded {
                let way = Way::Collective(Collective::AllGather);
                list.add("parameters", way, (Group::Data, replicas), of_layers(own));
            }
            if self.tensor > 1 {
                let (way, group) = (Way::Collective(Collective::AllReduce), Group::Tensor);
                let twice = vec![(passed, 2 * layers * batches)];
                list.add("activations", way, (group, self.tensor), twice);
            }
            if self.pipeline > 1 {
                let way = Way::Collective(Collective::SendRecv);
                let what = match phase {
                    Phase::Forward => "activations",
                    Phase::Backward | Phase::Update => "their gradients",
                };
                list.add(what, way, (Group::Pipeline, 2), vec![(passed, batches)]);
            }
        }
        let data = (Group::Data, replicas);
        match self.sharding {
            _ if replicas == 1 => {}
            Sharding::Ddp => {
                let way = Way::Collective(Collective::AllReduce);
                list.add("gradients", way, data, self.buckets(own, 1));
            }
            Sharding::Zero1 | Sharding::Zero2 => {
                // What a rank does not keep cannot be added up over micro-batches.
                let times = if self.sharding == Sharding::Zero1 { 1 } else { batches };
                let way = Way::Collective(Collective::ReduceScatter);
                list.add("gradients", way, data, self.buckets(own, times));
            }
            Sharding::Zero3 => {
                let way = Way::Collective(Collective::ReduceScatter);
                list.add("gradients", way, data, of_layers(own));
            }
        }
        if offloads_optimizer {
            let to_host = of_layers(part);
            list.add("gradients", Way::ToHost, (Group::Own, 1), to_host);
            list.phase = Phase::Update;
            if !offloads_params {
                let back = split(part, layers, each, 1);
                list.add("parameters", Way::FromHost, (Group::Own, 1), back);
            }
        }
        list.phase = Phase::Update;
        if replicas > 1 && matches!(self.sharding, Sharding::Zero1 | Sharding::Zero2) {
            let way = Way::Collective(Collective::AllGather);
            list.add("parameters", way, data, self.buckets(own, 1));
        }
        Ok(list.all)
    }

    fn check(&self) -> Result<(), String> {
        let Self { ranks, tensor, pipeline, layers, .. } = *self;
        let groups = u64::from(tensor) * u64::from(pipeline);
        if groups == 0 || !u64::from(ranks).is_multiple_of(groups) || ranks == 0 {
            return Err(format!(
                "{ranks} GPUs are no multiple of {tensor} (--tensor-parallel) x {pipeline} \
                 (--pipeline-parallel): give --ranks that is one"
            ));
        }
        if layers == 0 || self.parameters < u64::from(layers) || pipeline > layers {
            return Err(format!(
                "{} parameters in {layers} layers cannot be in {pipeline} parts: give --parameters \
                 and --layers of a model with a layer for each part",
                self.parameters
            ));
        }
        if groups > 1 && (self.hidden.is_none() || self.sequence.is_none()) {
            return Err(
                "between the GPUs that share a model go activations, of a size that is not \
                        known: give --hidden and --sequence, or a --model"
                    .to_owned(),
            );
        }
        for what in &self.offload {
            let (name, least) = match what {
                Offload::Params => ("params", Sharding::Zero3),
                Offload::Optimizer => ("optimizer", Sharding::Zero2),
            };
            if (self.sharding as u8) < least as u8 {
                let least = format!("{least:?}").to_lowercase();
                return Err(format!("--offload {name} needs --sharding {least} or more"));
            }
        }
        Ok(())
    }

    /// What goes from layer to layer of a micro-batch, if that is needed.
    fn activation(&self, each: u64) -> u64 {
        let [hidden, sequence] = [self.hidden, self.sequence].map(Option::unwrap_or_default);
        self.micro_batch_size.saturating_mul(sequence).saturating_mul(hidden).saturating_mul(each)
    }

    /// So many elements in buckets, so many times.
    fn buckets(&self, elements: u64, times: u64) -> Vec<(u64, u64)> {
        let each = self.data_type.size().get();
        let usual = match self.sharding {
            Sharding::Ddp => BUCKET_OF_DDP.get(),
            Sharding::Zero1 | Sharding::Zero2 | Sharding::Zero3 => BUCKET_OF_ZERO * each,
        };
        let bucket = self.bucket.map_or(usual, Bytes::get).max(each) / each * each;
        let all = elements * each;
        vec![(bucket, all / bucket * times), (all % bucket, times)]
    }
}

/// So many elements of `each` bytes in `parts` that are as equal as can be, so many times.
fn split(elements: u64, parts: u64, each: u64, times: u64) -> Vec<(u64, u64)> {
    let (least, more) = (elements / parts, elements % parts);
    vec![((least + 1) * each, more * times), (least * each, (parts - more) * times)]
}

/// The list as it grows.
struct List {
    all: Vec<Communication>,
    phase: Phase,
}

impl List {
    /// Adds operations of these sizes in bytes, each so many times.
    fn add(
        &mut self,
        what: &'static str,
        way: Way,
        (group, ranks): (Group, u32),
        sizes: Vec<(u64, u64)>,
    ) {
        let phase = self.phase;
        let is_there = |&(size, times): &(u64, u64)| size > 0 && times > 0;
        let all = sizes.into_iter().filter(is_there).map(|(size, times)| {
            let size = Bytes::new(size);
            Communication { phase, what, way, group, ranks, size, times }
        });
        self.all.extend(all);
    }
}

#[cfg(test)]
mod tests;
