//! `g2g explain`: reads NCCL's logs and prints what they mean.

use std::{
    fs::File,
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use clap::Args;

use super::{TextOrJson, print, print_page};
use crate::{
    nccl_log::{Reader, explain::Explanation},
    run::Failure,
    show::{self, Page},
};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 1 << 16;

/// The flags of `g2g explain`.
#[derive(Clone, Debug, Args)]
pub struct Explain {
    /// NCCL logs (NCCL_DEBUG=INFO) of one job: what its ranks printed, or the files of
    /// NCCL_DEBUG_FILE; - is standard input
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,

    /// Format of the answer on standard output
    #[arg(long, value_enum, default_value_t = TextOrJson::Table)]
    format: TextOrJson,
}

impl Explain {
    /// Reads the files in their order and prints what they say together.
    pub(super) fn run(&self) -> Result<bool, Failure> {
        let mut reader = Reader::default();
        for path in &self.logs {
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
                "no line of NCCL is in the log: set NCCL_DEBUG=INFO for the ranks, and give what \
                 they print or the files of NCCL_DEBUG_FILE"
                    .to_owned(),
            ));
        }
        let explanation = Explanation::of(log);
        match self.format {
            TextOrJson::Table => print_page(&Page::of(&explanation.text())),
            TextOrJson::Json => print(&show::json(&explanation)),
        }
    }
}
