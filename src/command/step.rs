//! `g2g step`: what the GPUs of a training step tell each other, and how long that takes.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{PossibleValuesParser, RangedI64ValueParser, RangedU64ValueParser},
};
use serde_json::json;

use super::{TextOrJson, print, print_page};
use crate::{
    analysis::training::{timed, total},
    plan::{
        DataType,
        training::{MODELS, Offload, Sharding, Training},
    },
    record::{Row, Run},
    run::Failure,
    show,
    units::Bytes,
};

/// The flags of `g2g step`.
#[derive(Clone, Debug, Args)]
pub struct Step {
    /// Folders of runs with the collectives, and copies of host memory, that the step has; without
    /// any only the list is shown
    #[arg(value_name = "RUN")]
    runs: Vec<PathBuf>,

    /// Model with public dimensions
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(
        MODELS.map(|model| model.name)))]
    model: Option<String>,

    /// Parameters of a model in all, such as 8.03e9
    #[arg(long, value_name = "N", value_parser = number)]
    parameters: Option<u64>,

    /// Its layers
    #[arg(long, value_name = "N", value_parser = few())]
    layers: Option<u32>,

    /// Width of what goes from layer to layer, in elements
    #[arg(long, value_name = "N", value_parser = many())]
    hidden: Option<u64>,

    /// Tokens of a sequence
    #[arg(long, value_name = "N", value_parser = many())]
    sequence: Option<u64>,

    /// Type of parameters, gradients and activations
    #[arg(long, value_enum, value_name = "TYPE", default_value = "bfloat16")]
    data_type: DataType,

    /// What each replica keeps of the model's state
    #[arg(long, value_enum, value_name = "WHAT", default_value = "zero3")]
    sharding: Sharding,

    /// GPUs in all
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = few())]
    ranks: u32,

    /// GPUs that share each layer
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = few())]
    tensor_parallel: u32,

    /// Groups of layers on GPUs of their own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = few())]
    pipeline_parallel: u32,

    /// Micro-batches whose gradients are added up in a step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = few())]
    micro_batches: u32,

    /// Sequences of a micro-batch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = few())]
    micro_batch_size: u32,

    /// Data of a bucket of gradients or parameters [default: 25M with ddp, 500 million elements
    /// with zero1 and zero2]
    #[arg(long, value_name = "SIZE")]
    bucket: Option<Bytes>,

    /// What is kept in host memory
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    offload: Vec<Offload>,

    /// Format of the answer on standard output
    #[arg(long, value_enum, default_value_t = TextOrJson::Table)]
    format: TextOrJson,
}

/// A count that no step exceeds.
fn few() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=100_000)
}

/// The same of elements.
fn many() -> RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=10_000_000)
}

/// A whole number, also with an exponent.
fn number(text: &str) -> Result<u64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (1.0..1e15).contains(value));
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 10^15")]
    let value = value.map(|value| value.round() as u64);
    value.ok_or_else(|| "write a number such as 8030261248 or 8.03e9".to_owned())
}

impl Step {
    /// Prints the list, with times if there are runs.
    pub(super) fn run(&self) -> Result<bool, Failure> {
        let step = self.training()?.step().map_err(Failure::Start)?;
        let mut rows: Vec<Row> = Vec::new();
        for folder in &self.runs {
            rows.extend(Run::read(folder).map_err(Failure::start)?.rows);
        }
        let simulated = rows.iter().any(|row| row.simulated);
        let rows = (!self.runs.is_empty()).then_some(&rows[..]);
        let all = timed(step, rows).map_err(|commands| {
            let commands = commands.join("` and `");
            Failure::Start(format!(
                "the runs do not have all sizes of this step: measure them with `{commands}`, and \
                 give those folders too"
            ))
        })?;
        match self.format {
            TextOrJson::Table => print_page(&show::training_page(&all, simulated)),
            TextOrJson::Json => {
                let answer = json!({ "simulated": simulated, "step": all, "total": total(&all) });
                print(&show::json(&answer))
            }
        }
    }

    fn training(&self) -> Result<Training, Failure> {
        let model = MODELS.iter().find(|model| Some(model.name) == self.model.as_deref());
        let parameters = self.parameters.or(model.map(|of| of.parameters));
        let layers = self.layers.or(model.map(|of| of.layers));
        let (Some(parameters), Some(layers)) = (parameters, layers) else {
            let names = MODELS.map(|model| model.name).join(", ");
            return Err(Failure::Words(format!(
                "which model? Give --parameters and --layers, or --model with one of {names}"
            )));
        };
        Ok(Training {
            parameters,
            layers,
            hidden: self.hidden.or(model.map(|of| of.hidden)),
            sequence: self.sequence.or(model.map(|of| of.sequence)),
            data_type: self.data_type,
            sharding: self.sharding,
            ranks: self.ranks,
            tensor: self.tensor_parallel,
            pipeline: self.pipeline_parallel,
            micro_batches: self.micro_batches.into(),
            micro_batch_size: self.micro_batch_size.into(),
            bucket: self.bucket,
            offload: self.offload.clone(),
        })
    }
}
