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
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum, strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
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

/// How data goes, and among how many GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// How.
    pub way: Way,
    /// Among whom.
    pub group: Group,
    /// How many they are.
    pub ranks: u32,
}

/// Operations that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Operations {
    /// The size of one, as nccl-tests counts it.
    pub size: Bytes,
    /// How often in a step.
    pub times: u64,
}

/// What is done in a step, again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Communication {
    /// When.
    pub phase: Phase,
    /// What is moved.
    pub what: &'static str,
    /// Between whom.
    #[serde(flatten)]
    pub route: Route,
    /// How much.
    #[serde(flatten)]
    pub operations: Operations,
}

impl Communication {
    /// What a rank sends in a step, or copies: the least that goes through its link, in bytes.
    pub fn moved(&self) -> f64 {
        let Route { way, ranks, .. } = self.route;
        let factor = match way {
            Way::Collective(collective) => collective.busbw_factor(ranks).unwrap_or(0.0),
            Way::ToHost | Way::FromHost => 1.0,
        };
        let Operations { size, times } = self.operations;
        size.get() as f64 * times as f64 * factor
    }
}

impl Training {
    /// The GPUs that have the same part of the model, each with data of its own.
    const fn replicas(&self) -> u32 {
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
        let mut list = List { phase: Phase::Forward, all: Vec::new() };
        let layers = u64::from(self.layers.div_ceil(self.pipeline));
        let own = self.parameters / u64::from(self.tensor * self.pipeline);
        let (replicas, batches) = (self.replicas(), self.micro_batches);
        let part = own / u64::from(replicas);
        let [offloads_params, offloads_optimizer] =
            [Offload::Params, Offload::Optimizer].map(|what| self.offload.contains(&what));
        let of_layers = |elements: u64, times: u64| self.layers_of(elements, layers, times);
        let alone = |way| Route { way, group: Group::Own, ranks: 1 };
        let among = |collective, group, ranks| {
            let way = Way::Collective(collective);
            Route { way, group, ranks }
        };
        let replicated = |collective| among(collective, Group::Data, replicas);
        for phase in [Phase::Forward, Phase::Backward] {
            list.phase = phase;
            if offloads_params {
                list.add("parameters", alone(Way::FromHost), of_layers(part, batches));
            }
            if self.sharding == Sharding::Zero3 {
                let route = replicated(Collective::AllGather);
                list.add("parameters", route, of_layers(own, batches));
            }
            let passed = |times| vec![Operations { size: self.activation(), times }];
            let route = among(Collective::AllReduce, Group::Tensor, self.tensor);
            list.add("activations", route, passed(2 * layers * batches));
            let route = among(Collective::SendRecv, Group::Pipeline, self.pipeline.min(2));
            let is_back = phase == Phase::Backward;
            let what = if is_back { "their gradients" } else { "activations" };
            list.add(what, route, passed(batches));
        }
        let (route, operations) = match self.sharding {
            Sharding::Ddp => (Collective::AllReduce, self.buckets(own, 1)),
            Sharding::Zero1 => (Collective::ReduceScatter, self.buckets(own, 1)),
            // What a rank does not keep cannot be added up over micro-batches.
            Sharding::Zero2 => (Collective::ReduceScatter, self.buckets(own, batches)),
            Sharding::Zero3 => (Collective::ReduceScatter, of_layers(own, batches)),
        };
        list.add("gradients", replicated(route), operations);
        if offloads_optimizer {
            list.add("gradients", alone(Way::ToHost), of_layers(part, batches));
        }
        list.phase = Phase::Update;
        if offloads_optimizer && !offloads_params {
            list.add("parameters", alone(Way::FromHost), of_layers(part, 1));
        }
        if matches!(self.sharding, Sharding::Zero1 | Sharding::Zero2) {
            list.add("parameters", replicated(Collective::AllGather), self.buckets(own, 1));
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
            return Err("between the GPUs that share a model go activations, of a size that is \
                        not known: give --hidden and --sequence, or a --model"
                .to_owned());
        }
        for what in &self.offload {
            let least = match what {
                Offload::Params => Sharding::Zero3,
                Offload::Optimizer => Sharding::Zero2,
            };
            if self.sharding < least {
                return Err(format!("--offload {what} needs --sharding {least} or more"));
            }
        }
        Ok(())
    }

    /// What goes from layer to layer of a micro-batch, if that is known.
    fn activation(&self) -> Bytes {
        let [hidden, sequence] = [self.hidden, self.sequence].map(Option::unwrap_or_default);
        self.data_type.size().times(hidden).times(sequence).times(self.micro_batch_size)
    }

    /// So many elements in layers that are as equal as can be, so many times.
    fn layers_of(&self, elements: u64, layers: u64, times: u64) -> Vec<Operations> {
        let (least, more) = (elements / layers, elements % layers);
        let of =
            |elements, times| Operations { size: self.data_type.size().times(elements), times };
        vec![of(least + 1, more * times), of(least, (layers - more) * times)]
    }

    /// So many elements in buckets, so many times.
    fn buckets(&self, elements: u64, times: u64) -> Vec<Operations> {
        let each = self.data_type.size().get();
        let usual = match self.sharding {
            Sharding::Ddp => BUCKET_OF_DDP.get(),
            Sharding::Zero1 | Sharding::Zero2 | Sharding::Zero3 => BUCKET_OF_ZERO * each,
        };
        let bucket = self.bucket.map_or(usual, Bytes::get).max(each) / each * each;
        let all = elements * each;
        let of = |size, times| Operations { size: Bytes::new(size), times };
        vec![of(bucket, (all / bucket).saturating_mul(times)), of(all % bucket, times)]
    }
}

/// The list as it grows.
struct List {
    phase: Phase,
    all: Vec<Communication>,
}

impl List {
    /// Adds operations. Those of no data, or of one rank that has nobody to tell, are none.
    fn add(&mut self, what: &'static str, route: Route, operations: Vec<Operations>) {
        let is_alone = route.ranks < 2 && route.group != Group::Own;
        let is_there = |of: &Operations| of.size > Bytes::default() && of.times > 0 && !is_alone;
        let phase = self.phase;
        let operations = operations.into_iter().filter(is_there);
        let all = operations.map(|operations| Communication { phase, what, route, operations });
        self.all.extend(all);
    }
}

#[cfg(test)]
mod tests;
