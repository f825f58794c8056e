//! The file of a plan: what its keys are and what values they take.

use std::{collections::BTreeMap, iter};

use serde::Deserialize;
use strum::VariantArray as _;
use toml::Spanned;

use super::{Axis, Combination, Plan};
use crate::plan::{
    TransportKind,
    bad_file::{BadFile, Problem},
    nccl_env::BEGINNINGS,
};

/// The axis whose values are g2g's commands.
const COMMAND: &str = "command";

const REPETITIONS_DEFAULT: usize = 5;
const REPETITIONS_MAX: i64 = 1000;

/// More would take days, and are most likely a mistake in a list of axes.
const RUNS_MAX: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    command: Option<Spanned<String>>,
    #[serde(default)]
    flags: Words,
    #[serde(default)]
    env: BTreeMap<String, Scalar>,
    #[serde(default)]
    launcher: Words,
    repetitions: Option<Spanned<i64>>,
    axis: Spanned<Vec<AxisKeys>>,
    #[serde(default)]
    combination: Vec<Spanned<BTreeMap<Spanned<String>, Spanned<Scalar>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AxisKeys {
    name: Spanned<String>,
    values: Spanned<Vec<Spanned<Value>>>,
}

/// A value of an axis: a scalar, whose meaning follows from the axis's name, or what it adds.
#[derive(Debug, Deserialize)]
#[serde(try_from = "toml::Value")]
enum Value {
    Plain(String),
    Keys(ValueKeys),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueKeys {
    label: String,
    #[serde(default)]
    flags: Words,
    #[serde(default)]
    env: BTreeMap<String, Scalar>,
}

/// Words as one text with blanks between them, or as a list.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "toml::Value")]
struct Words(Vec<String>);

/// A text or a whole number, as a text.
#[derive(Debug, Deserialize)]
#[serde(try_from = "toml::Value")]
struct Scalar(String);

impl TryFrom<toml::Value> for Words {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let word = |word: toml::Value| match word {
            toml::Value::String(word) => Ok(word),
            other => Err(not(&other, "a text")),
        };
        match value {
            toml::Value::String(text) => {
                Ok(Self(text.split_whitespace().map(str::to_owned).collect()))
            }
            toml::Value::Array(words) => {
                words.into_iter().map(word).collect::<Result<_, _>>().map(Self)
            }
            other => {
                Err(not(&other, "words: one text with blanks between them, or a list of texts"))
            }
        }
    }
}

impl TryFrom<toml::Value> for Value {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        match value {
            toml::Value::Table(keys) => keys
                .try_into()
                .map(Self::Keys)
                .map_err(|err: toml::de::Error| err.message().to_owned()),
            plain => {
                scalar(plain, "a text, a whole number, or { label, flags, env }").map(Self::Plain)
            }
        }
    }
}

impl TryFrom<toml::Value> for Scalar {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        scalar(value, "a text or a whole number").map(Self)
    }
}

fn scalar(value: toml::Value, expected: &str) -> Result<String, String> {
    match value {
        toml::Value::String(text) => Ok(text),
        toml::Value::Integer(number) => Ok(number.to_string()),
        other => Err(not(&other, expected)),
    }
}

fn not(value: &toml::Value, expected: &str) -> String {
    format!("invalid type: {} `{value}`, expected {expected}", value.type_str())
}

impl Plan {
    /// The plan that a file's text describes.
    pub fn read(text: &str) -> Result<Self, BadFile> {
        let file = toml::from_str(text).map_err(Problem::from);
        file.and_then(plan).map_err(|problem| problem.in_file(text))
    }
}

fn plan(file: File) -> Result<Plan, Problem> {
    if file.axis.get_ref().is_empty() {
        return Err(Problem::new(&file.axis, "axis", "there is none: write at least one"));
    }
    let (mut axes, mut words) = (Vec::<Axis>::new(), Vec::new());
    for keys in file.axis.get_ref() {
        if axes.iter().any(|axis| axis.name == *keys.name.get_ref()) {
            let text = format!("`{}` is there twice", keys.name.get_ref());
            return Err(Problem::new(&keys.name, "axis.name", text));
        }
        let (axis, of_values) = axis(keys)?;
        axes.push(axis);
        words.push(of_values);
    }
    let command = command(&file, &axes)?;
    let repetitions = repetitions(file.repetitions.as_ref())?;
    let chosen = chosen(&file, &axes, repetitions)?;
    let combinations = chosen.into_iter().map(|values| {
        let of_axis = axes.iter().zip(&values).find(|(axis, _)| axis.name == COMMAND);
        let of_axis = of_axis.map(|(axis, &value)| &axis.values[value]);
        let mut all: Vec<String> = command.or(of_axis).into_iter().cloned().collect();
        all.extend(file.flags.0.iter().cloned());
        all.extend(variables(&file.env));
        all.extend(words.iter().zip(&values).flat_map(|(axis, &value)| axis[value].clone()));
        Combination { values, words: all }
    });
    let combinations = combinations.collect();
    Ok(Plan { launcher: file.launcher.0, axes, combinations, repetitions })
}

/// The command of all runs; `None`: it is an axis.
fn command<'a>(file: &'a File, axes: &[Axis]) -> Result<Option<&'a String>, Problem> {
    let is_axis = axes.iter().any(|axis| axis.name == COMMAND);
    match &file.command {
        Some(command) if is_axis => {
            let text = "`command` is an axis: leave it out here";
            Err(Problem::new(command, COMMAND, text))
        }
        Some(command) => match is_command(command.get_ref()) {
            Ok(()) => Ok(Some(command.get_ref())),
            Err(text) => Err(Problem::new(command, COMMAND, text)),
        },
        None if is_axis => Ok(None),
        None => {
            let text =
                format!("there is no `command` above: write one of {}", commands().join(", "));
            Err(Problem::new(&file.axis, "", text))
        }
    }
}

/// For each combination that is run, the number of its value of each axis.
fn chosen(file: &File, axes: &[Axis], repetitions: usize) -> Result<Vec<Vec<usize>>, Problem> {
    let chosen = match file.combination.as_slice() {
        [] => cartesian(axes),
        listed => Some(listed.iter().map(|each| choice(each, axes)).collect::<Result<_, _>>()?),
    };
    let chosen = chosen.filter(|chosen: &Vec<Vec<usize>>| chosen.len() * repetitions <= RUNS_MAX);
    let Some(chosen) = chosen else {
        let text = format!("there are more than {RUNS_MAX} runs: take values or repetitions away");
        return Err(Problem::new(&file.axis, "axis", text));
    };
    for (place, listed) in file.combination.iter().enumerate() {
        if chosen[..place].contains(&chosen[place]) {
            return Err(Problem::new(listed, "combination", "the same is there already"));
        }
    }
    Ok(chosen)
}

fn repetitions(wanted: Option<&Spanned<i64>>) -> Result<usize, Problem> {
    let Some(wanted) = wanted else { return Ok(REPETITIONS_DEFAULT) };
    let count = Some(*wanted.get_ref()).filter(|count| (1..=REPETITIONS_MAX).contains(count));
    count.and_then(|count| usize::try_from(count).ok()).ok_or_else(|| {
        let text = format!("{} is not between 1 and {REPETITIONS_MAX}", wanted.get_ref());
        Problem::new(wanted, "repetitions", text)
    })
}

/// An axis, and the words that each of its values adds to those of a run.
fn axis(keys: &AxisKeys) -> Result<(Axis, Vec<Vec<String>>), Problem> {
    let name = keys.name.get_ref();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if name.is_empty() || !name.chars().all(is_plain) {
        let text = format!("`{name}` is no name: write letters, digits and `-`, `_`, `.`");
        return Err(Problem::new(&keys.name, "axis.name", text));
    }
    if keys.values.get_ref().is_empty() {
        let text = format!("`{name}` has no value: write at least one");
        return Err(Problem::new(&keys.values, "axis.values", text));
    }
    let (mut labels, mut all_words) = (Vec::<String>::new(), Vec::new());
    for value in keys.values.get_ref() {
        let problem = |text: String| Problem::new(value, "axis.values", text);
        let (label, words) = label_and_words(name, value.get_ref()).map_err(problem)?;
        let is_cell = |letter: char| !letter.is_control() && !",\"".contains(letter);
        if label.is_empty() || !label.chars().all(is_cell) {
            let text =
                format!("`{label}` is no label: give the value one without commas and quotes");
            return Err(problem(format!("{text}, as {{ label = \"…\", flags = \"…\" }}")));
        }
        if labels.contains(&label) {
            return Err(problem(format!("`{label}` is there twice")));
        }
        labels.push(label);
        all_words.push(words);
    }
    Ok((Axis { name: name.clone(), values: labels }, all_words))
}

/// The commands that measure.
fn commands() -> Vec<&'static str> {
    iter::once("run").chain(TransportKind::VARIANTS.iter().map(Into::into)).collect()
}

/// Refuses what is no command that measures.
fn is_command(text: &str) -> Result<(), String> {
    match commands().contains(&text) {
        true => Ok(()),
        false => Err(format!("`{text}` measures nothing: write one of {}", commands().join(", "))),
    }
}

/// What a value of the axis `name` is called and adds, or why it cannot be understood.
fn label_and_words(name: &str, value: &Value) -> Result<(String, Vec<String>), String> {
    let words = match value {
        Value::Plain(text) if name == COMMAND => is_command(text).map(|()| Vec::new())?,
        Value::Keys(_) if name == COMMAND => return Err("a command is a text".to_owned()),
        Value::Plain(text) if name.starts_with("--") => vec![name.to_owned(), text.clone()],
        Value::Plain(text) if BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) => {
            vec!["--nccl-env".to_owned(), format!("{name}={text}")]
        }
        Value::Plain(text) => {
            return Err(format!(
                "`{name}` is neither a flag (`--ranks`) nor a variable of NCCL (`NCCL_ALGO`): say \
                 what `{text}` means, as {{ label = \"{text}\", flags = \"…\" }}"
            ));
        }
        Value::Keys(keys) => keys.flags.0.iter().cloned().chain(variables(&keys.env)).collect(),
    };
    let (Value::Plain(label) | Value::Keys(ValueKeys { label, .. })) = value;
    Ok((label.clone(), words))
}

fn variables(env: &BTreeMap<String, Scalar>) -> impl Iterator<Item = String> + '_ {
    env.iter().flat_map(|(name, value)| ["--nccl-env".to_owned(), format!("{name}={}", value.0)])
}

/// Every value with every one of the other axes, the last axis's changing first; `None`: far too
/// many.
fn cartesian(axes: &[Axis]) -> Option<Vec<Vec<usize>>> {
    let mut chosen = vec![Vec::new()];
    for axis in axes {
        if chosen.len().checked_mul(axis.values.len())? > RUNS_MAX {
            return None;
        }
        let with_each = |values: &Vec<usize>| {
            let values = values.clone();
            (0..axis.values.len()).map(move |value| [&values[..], &[value]].concat())
        };
        chosen = chosen.iter().flat_map(with_each).collect();
    }
    Some(chosen)
}

/// The values of a combination that is listed.
fn choice(
    listed: &Spanned<BTreeMap<Spanned<String>, Spanned<Scalar>>>,
    axes: &[Axis],
) -> Result<Vec<usize>, Problem> {
    let chosen = listed.get_ref();
    if let Some(name) =
        chosen.keys().find(|name| axes.iter().all(|axis| axis.name != *name.get_ref()))
    {
        let text = format!("there is no axis `{}`", name.get_ref());
        return Err(Problem::new(name, "combination", text));
    }
    let value = |axis: &Axis| {
        let found = chosen.iter().find(|(name, _)| *name.get_ref() == axis.name);
        let Some((_, label)) = found else {
            let text = format!("it has no value of `{}`: write one for each axis", axis.name);
            return Err(Problem::new(listed, "combination", text));
        };
        let wanted = &label.get_ref().0;
        axis.values.iter().position(|value| value == wanted).ok_or_else(|| {
            let all = axis.values.join(", ");
            let text = format!("`{}` has no value `{wanted}`: it has {all}", axis.name);
            Problem::new(label, "combination", text)
        })
    };
    axes.iter().map(value).collect()
}
