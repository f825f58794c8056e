//! Command lines, and files of NCCL's variables.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, path::PathBuf};

use g2g::{
    command::{Answer, Cli, Command},
    plan::nccl_env::{findings, settings},
};

use super::{assert_sentence, files};

/// The first part is words, one a line, the second a file as NCCL reads it: no panic, one sentence
/// of what is wrong.
pub(crate) fn take(input: &[u8]) -> bool {
    let [words, conf]: [&[u8]; 2] = files(input);
    let words = words.strip_suffix(b"\n").unwrap_or(words);
    let words = words.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.to_vec()));
    let is_taken = match Cli::read([OsString::from("g2g")].into_iter().chain(words)) {
        Ok(cli) => {
            if let Command::Measure(measure) = cli.command {
                let options = measure.options();
                let _ = options.effort();
                match options.request(false) {
                    Ok(request) => {
                        let request = &request.nccl;
                        let seen = settings(&request.variables, [], &[]);
                        findings(&seen, None).iter().for_each(|(_, finding)| {
                            assert_sentence(&finding.sentence);
                        });
                    }
                    Err(sentence) => assert_sentence(&sentence),
                }
            }
            true
        }
        Err(Answer::Refused(sentence)) => {
            assert_sentence(&sentence);
            false
        }
        Err(Answer::Help(text) | Answer::Usage(text)) => {
            assert!(!text.is_empty());
            false
        }
    };
    let text = String::from_utf8_lossy(conf).into_owned();
    let seen = settings(&[], [], &[(PathBuf::from("/etc/nccl.conf"), text)]);
    for (_, finding) in findings(&seen, None) {
        assert_sentence(&finding.sentence);
    }
    is_taken
}
