//! `g2g explain`: reads NCCL's logs and prints what they mean.

use std::{
    fs::File,
    io::{self, BufReader},
    path::Path,
};

use super::Failure;
use crate::{
    cli::{ExplainOptions, TopoFormat},
    evidence::{explain::Explanation, nccl_log::Reader},
    record,
};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 1 << 16;

/// Reads the files in their order and prints what they say together.
pub(super) fn explain(options: &ExplainOptions) -> Result<bool, Failure> {
    let mut reader = Reader::default();
    for path in &options.logs {
        let name = path.display().to_string();
        let cannot = |err: io::Error| Failure::Start(format!("cannot read {name}: {err}"));
        if path == Path::new("-") {
            reader.read("standard input", io::stdin().lock()).map_err(cannot)?;
        } else {
            let file = File::open(path).map_err(cannot)?;
            reader.read(&name, BufReader::with_capacity(BUFFER_BYTES, file)).map_err(cannot)?;
        }
    }
    let log = reader.finish();
    if log.messages == 0 {
        return Err(Failure::Start(
            "no line of NCCL is in the log: set NCCL_DEBUG=INFO for the ranks, and give what they \
             print or the files of NCCL_DEBUG_FILE"
                .to_owned(),
        ));
    }
    let explanation = Explanation::of(log);
    let text = match options.format {
        TopoFormat::Table => explanation.text(),
        TopoFormat::Json => {
            let json = serde_json::to_string_pretty(&explanation);
            json.map_err(|err| Failure::Start(err.to_string()))? + "\n"
        }
    };
    record::print(&text).map_err(|err| Failure::Start(err.to_string())).map(|()| true)
}
