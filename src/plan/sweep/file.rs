//! The file of a plan: what its keys are and what values they take.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use toml::Spanned;

use super::{Axis, Combination, Plan};

/// The axis whose values are g2g's commands.
const COMMAND: &str = "command";

/// What the variables begin with that `--nccl-env` takes.
const VARIABLES: [&str; 3] = ["NCCL_", "OFI_NCCL_", "FI_"];

/// The commands that measure.
const COMMANDS: [&str; 6] = ["run", "local", "p2p", "shm", "nccl", "rdma"];

const REPETITIONS_DEFAULT: usize = 5;
const REPETITIONS_MAX: i64 = 1000;

/// More would take days, and is most often a mistake in a list of axes.
const RUNS_MAX: usize = 10_000;

/// What is wrong with a plan, and where.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}{}: {problem}", in_key(.key))]
pub struct BadPlan {
    /// Counted from 1.
    pub line: usize,
    /// The key, with the tables it is in; empty if the line is no TOML.
    pub key: String,
    /// What is wrong with it, and what to write.
    pub problem: String,
}

fn in_key(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(", `{key}`") }
}

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
#[derive(Debug)]
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
#[derive(Clone, Debug, Default)]
struct Words(Vec<String>);

/// A text or a whole number, as a text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Scalar(String);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("words: one text with blanks between them, or a list of texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Words, E> {
                Ok(Words(text.split_whitespace().map(str::to_owned).collect()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(Words(words))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a whole number, or { label, flags, env }")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Plain(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
                Ok(Value::Plain(number.to_string()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
                ValueKeys::deserialize(MapAccessDeserializer::new(map)).map(Value::Keys)
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a whole number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

/// What is wrong, and how many bytes are before it.
struct Problem {
    at: usize,
    key: String,
    text: String,
}

impl Problem {
    fn new<T>(value: &Spanned<T>, key: &str, text: impl Into<String>) -> Self {
        let line = |text: &str| text.replace('\n', " ");
        Self { at: value.span().start, key: line(key), text: line(&text.into()) }
    }
}

impl From<toml::de::Error> for Problem {
    fn from(mut error: toml::de::Error) -> Self {
        // Only without the text to show does the error tell the key, behind its message.
        error.set_input(None);
        let shown = error.to_string();
        let key = shown.rsplit_once("in `").and_then(|(_, key)| key.trim_end().strip_suffix('`'));
        let at = error.span().map_or(0, |span| span.start);
        // A value or a key that is quoted in it may have line breaks.
        let line = |text: &str| text.replace('\n', " ");
        Self { at, key: line(key.unwrap_or_default()), text: line(error.message()) }
    }
}

/// The plan that a file's text describes.
pub(super) fn read(text: &str) -> Result<Plan, BadPlan> {
    let file = toml::from_str(text).map_err(Problem::from);
    file.and_then(plan).map_err(|Problem { at, key, text: problem }| {
        let line = 1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count();
        BadPlan { line, key, problem: problem.replace('\n', " ") }
    })
}

/// What a value adds to the words of a run.
struct Addition {
    command: Option<String>,
    words: Vec<String>,
}

fn plan(file: File) -> Result<Plan, Problem> {
    let (mut axes, mut additions) = (Vec::<Axis>::new(), Vec::new());
    if file.axis.get_ref().is_empty() {
        return Err(Problem::new(&file.axis, "axis", "there is none: write at least one"));
    }
    for keys in file.axis.get_ref() {
        if axes.iter().any(|axis| axis.name == *keys.name.get_ref()) {
            let text = format!("`{}` is there twice", keys.name.get_ref());
            return Err(Problem::new(&keys.name, "axis.name", text));
        }
        let (axis, of_values) = axis(keys)?;
        axes.push(axis);
        additions.push(of_values);
    }
    let of_axis = axes.iter().any(|axis| axis.name == COMMAND);
    match &file.command {
        Some(command) if of_axis => {
            let text = "`command` is an axis: leave it out here";
            return Err(Problem::new(command, "command", text));
        }
        Some(command) => {
            is_command(command.get_ref()).map_err(|text| Problem::new(command, "command", text))?
        }
        None if of_axis => {}
        None => {
            let text = format!("there is no `command` above: write one of {}", COMMANDS.join(", "));
            return Err(Problem::new(&file.axis, "", text));
        }
    }
    let repetitions = repetitions(file.repetitions.as_ref())?;
    let chosen = match file.combination.as_slice() {
        [] => cartesian(&axes),
        listed => Some(listed.iter().map(|each| choice(each, &axes)).collect::<Result<_, _>>()?),
    };
    let chosen = chosen.filter(|chosen: &Vec<Vec<usize>>| chosen.len() * repetitions <= RUNS_MAX);
    let Some(chosen) = chosen else {
        let text = format!("there are more than {RUNS_MAX} runs: take values or repetitions away");
        return Err(Problem::new(&file.axis, "axis", text));
    };
    for (place, values) in chosen.iter().enumerate() {
        if let Some(listed) =
            file.combination.get(place).filter(|_| chosen[..place].contains(values))
        {
            return Err(Problem::new(listed, "combination", "the same is there already"));
        }
    }
    let combinations = chosen.into_iter().map(|values| {
        let of_values: Vec<&Addition> =
            additions.iter().zip(&values).map(|(axis, &value)| &axis[value]).collect();
        let command = of_values.iter().find_map(|addition| addition.command.as_ref());
        let command = command.or(file.command.as_ref().map(Spanned::get_ref));
        let mut words: Vec<String> = command.into_iter().cloned().collect();
        words.extend(file.flags.0.iter().cloned());
        words.extend(variables(&file.env));
        words.extend(of_values.iter().flat_map(|addition| addition.words.clone()));
        Combination { values, words }
    });
    let combinations = combinations.collect();
    Ok(Plan { launcher: file.launcher.0, axes, combinations, repetitions })
}

fn repetitions(wanted: Option<&Spanned<i64>>) -> Result<usize, Problem> {
    let Some(wanted) = wanted else { return Ok(REPETITIONS_DEFAULT) };
    let count = Some(*wanted.get_ref()).filter(|count| (1..=REPETITIONS_MAX).contains(count));
    count.and_then(|count| usize::try_from(count).ok()).ok_or_else(|| {
        let text = format!("{} is not between 1 and {REPETITIONS_MAX}", wanted.get_ref());
        Problem::new(wanted, "repetitions", text)
    })
}

/// An axis, and what each of its values adds.
fn axis(keys: &AxisKeys) -> Result<(Axis, Vec<Addition>), Problem> {
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
    let (mut labels, mut additions) = (Vec::<String>::new(), Vec::new());
    for value in keys.values.get_ref() {
        let problem = |text: String| Problem::new(value, "axis.values", text);
        let (label, addition) = addition(name, value.get_ref()).map_err(problem)?;
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
        additions.push(addition);
    }
    Ok((Axis { name: name.clone(), values: labels }, additions))
}

/// Refuses what is no command that measures.
fn is_command(text: &str) -> Result<(), String> {
    match COMMANDS.contains(&text) {
        true => Ok(()),
        false => Err(format!("`{text}` measures nothing: write one of {}", COMMANDS.join(", "))),
    }
}

/// What a value of the axis `name` is called and adds, or why it cannot be understood.
fn addition(name: &str, value: &Value) -> Result<(String, Addition), String> {
    let is_variable = VARIABLES.iter().any(|beginning| name.starts_with(beginning));
    match value {
        Value::Plain(text) if name == COMMAND => {
            is_command(text)?;
            let addition = Addition { command: Some(text.clone()), words: Vec::new() };
            Ok((text.clone(), addition))
        }
        Value::Keys(_) if name == COMMAND => Err("a command is a text".to_owned()),
        Value::Plain(text) => {
            let words = match (name.starts_with("--"), is_variable) {
                (true, _) => vec![name.to_owned(), text.clone()],
                (_, true) => vec!["--nccl-env".to_owned(), format!("{name}={text}")],
                (false, false) => {
                    return Err(format!(
                        "`{name}` is neither a flag (`--ranks`) nor a variable of NCCL \
                         (`NCCL_ALGO`): say what `{text}` means, as {{ label = \"{text}\", flags = \
                         \"…\" }}"
                    ));
                }
            };
            Ok((text.clone(), Addition { command: None, words }))
        }
        Value::Keys(keys) => {
            let words = keys.flags.0.iter().cloned().chain(variables(&keys.env)).collect();
            Ok((keys.label.clone(), Addition { command: None, words }))
        }
    }
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
