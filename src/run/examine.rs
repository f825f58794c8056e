//! What the doctor finds on the hosts of all ranks.

use std::{borrow::Cow, env, path::Path};

use super::{Failure, Ranks, judge::catalogue as read_catalogue};
use crate::{
    judge::doctor::{Facts, Member},
    machine::{self, Refusal, acs::Acs, host::Host, software::Software, survey, system::System},
    plan::{Rank, catalogue::Catalogue},
    transport::nccl_env,
};

/// Variables of CUDA and of containers that checks look at.
const VARIABLES: [&str; 6] = [
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_INJECTION64_PATH",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVTX_INJECTION64_PATH",
];

/// What the doctor finds as `rank`, the one at `place` of its host's, with the user's own catalogue.
pub(super) fn member(catalogue: Option<&Path>, rank: Rank, place: usize) -> Result<Member, String> {
    let catalogue =
        read_catalogue(catalogue).map_err(|failure| format!("rank {}: {failure}", rank.0))?;
    Ok(Member::new(rank.0, place, &facts(catalogue)))
}

/// Examines this rank's host, which has the ranks `here`, and gathers the answers at rank 0; `None`
/// on other ranks.
pub(crate) fn examine(
    catalogue: Option<&Path>,
    here: &[Rank],
    ranks: &mut Ranks,
) -> Result<Option<Vec<Member>>, Failure> {
    let rank = ranks.world.rank();
    let place = here.iter().position(|other| *other == rank).unwrap_or(0);
    let member = member(catalogue, rank, place);
    let members = ranks.world.gather(member).map_err(Failure::start)?;
    ranks.world.barrier().map_err(Failure::start)?;
    let members: Option<Result<Vec<Member>, String>> =
        members.map(|members| members.into_iter().collect());
    members.transpose().map_err(Failure::Start)
}

/// The facts that the checks need.
fn facts(catalogue: Cow<'static, Catalogue>) -> Facts {
    let system = System::here();
    let variable = |name: &str| env::var(name).ok();
    let software = Software::read(system, variable("LD_LIBRARY_PATH").as_deref());
    machine::nccl(None);
    let (survey, undescribed) = survey::told();
    let refusal = undescribed.map(|err| Refusal { code: None, reason: err.to_string() });
    let variables = VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), variable(name)?)));
    Facts {
        acs: Acs::read(system, &survey),
        host: Host::read(system),
        refusal: machine::driver_refusal().or(refusal),
        survey,
        confidential: machine::confidential_computing(),
        dma_buf: machine::gives_dma_bufs(),
        software,
        settings: nccl_env::seen(&[]),
        nccl: nccl_env::known(),
        catalogue,
        variables: variables.collect(),
    }
}
