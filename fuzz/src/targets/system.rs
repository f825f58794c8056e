//! The kernel's files that describe a machine.

use g2g::{
    machine::{acs::Acs, host::Host, software::Software, survey, system::System},
    record::topology_json,
    show::{picture, topology_page},
};

/// The machine of these files is shown: no panic, pictures that are XML by their marks.
pub(crate) fn take(files: &[u8]) -> bool {
    let Ok(json) = std::str::from_utf8(files) else { return false };
    let Ok(system) = System::described(json) else { return false };
    let survey = survey::shown(&system);
    let text = topology_json(&survey);
    let back: survey::Survey = serde_json::from_str(&text).expect("what is written reads back");
    topology_page(&back).styled();
    super::html::assert_is_safe(&picture(&back));
    Host::read(&system);
    Acs::read(&system, &survey);
    Software::read(&system, None);
    !survey.other_gpus.is_empty()
}
