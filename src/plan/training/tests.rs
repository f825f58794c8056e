use super::*;

/// ZeRO's letters: 8 x 10^9 parameters of 2 bytes on 8 GPUs.
fn training(sharding: Sharding) -> Training {
    Training {
        parameters: 8_000_000_000,
        layers: 32,
        hidden: Some(4096),
        sequence: Some(8192),
        data_type: DataType::Bfloat16,
        sharding,
        ranks: 8,
        tensor: 1,
        pipeline: 1,
        micro_batches: 1,
        micro_batch_size: 1,
        bucket: None,
        offload: Vec::new(),
    }
}

/// Bytes that a GPU sends to others in a step.
fn sent(training: &Training) -> f64 {
    let step = training.step().unwrap();
    step.iter().filter(|of| of.route.group != Group::Own).map(Communication::moved).sum()
}

fn is_about(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 1e-9, "{found} and {wanted}");
}

#[test]
fn the_volumes_are_those_of_the_papers() {
    let (psi, others) = (2.0 * 8e9, 7.0 / 8.0);
    // An all-reduce, or what it consists of.
    is_about(sent(&training(Sharding::Ddp)), 2.0 * psi * others);
    is_about(sent(&training(Sharding::Zero1)), 2.0 * psi * others);
    is_about(sent(&training(Sharding::Zero2)), 2.0 * psi * others);
    is_about(sent(&training(Sharding::Zero3)), 3.0 * psi * others);
    // Of four micro-batches.
    let four = |sharding| sent(&Training { micro_batches: 4, ..training(sharding) });
    is_about(four(Sharding::Ddp), 2.0 * psi * others);
    is_about(four(Sharding::Zero1), 2.0 * psi * others);
    is_about(four(Sharding::Zero2), 5.0 * psi * others);
    is_about(four(Sharding::Zero3), 4.0 * 3.0 * psi * others);
    // 32 layers do not divide them; nothing is lost.
    let odd = Training { parameters: 8_000_000_019, ..training(Sharding::Zero3) };
    is_about(sent(&odd), 3.0 * 2.0 * 8_000_000_019.0 * others);
    assert_eq!(odd.step().unwrap().len(), 6);
}

#[test]
fn a_bucket_is_what_is_sent_at_once() {
    let step = training(Sharding::Ddp).step().unwrap();
    let sizes: Vec<(u64, u64)> =
        step.iter().map(|of| (of.operations.size.get(), of.operations.times)).collect();
    assert_eq!(sizes, [(25 << 20, 610), (16_000_000_000 - 610 * (25 << 20), 1)]);
    let bucket = Some(Bytes::mib(100));
    let step = Training { bucket, ..training(Sharding::Zero1) }.step().unwrap();
    assert!(step.iter().all(|of| of.operations.size <= Bytes::mib(100)), "{step:?}");
    let step = training(Sharding::Zero1).step().unwrap();
    assert_eq!(
        (step[0].operations.size, step[0].operations.times),
        (Bytes::new(1_000_000_000), 16)
    );
}

#[test]
fn gpus_that_share_a_model_pass_activations() {
    // One sequence of 8192 tokens of 4096 elements of 2 bytes.
    let activation = 8192.0 * 4096.0 * 2.0;
    let shared = Training { tensor: 8, micro_batches: 3, ..training(Sharding::Ddp) };
    // Two all-reduces of a layer forward, and two back.
    is_about(sent(&shared), 4.0 * 32.0 * 3.0 * activation * 2.0 * 7.0 / 8.0);
    let behind = Training { pipeline: 8, micro_batches: 3, ..training(Sharding::Ddp) };
    is_about(sent(&behind), 2.0 * 3.0 * activation);
    // What is left of the GPUs are replicas of a part each.
    let all = Training { ranks: 64, tensor: 4, pipeline: 8, ..training(Sharding::Zero3) };
    let step = all.step().unwrap();
    let of_group = |group| step.iter().filter(move |of| of.route.group == group);
    assert!(of_group(Group::Data).all(|of| of.route.ranks == 2));
    let data: f64 = of_group(Group::Data).map(Communication::moved).sum();
    is_about(data, 3.0 * 2.0 * 8e9 / 32.0 / 2.0);
    assert!(of_group(Group::Tensor).all(|of| of.operations.times == 2 * 4));
}

#[test]
fn what_is_in_host_memory_is_copied_by_each_gpu() {
    let offload = vec![Offload::Params, Offload::Optimizer];
    let all = Training { offload, micro_batches: 4, ..training(Sharding::Zero3) };
    let step = all.step().unwrap();
    let copied = |way| -> f64 {
        step.iter().filter(|of| of.route.way == way).map(Communication::moved).sum()
    };
    // A GPU's eighth, for each pass of each micro-batch.
    is_about(copied(Way::FromHost), 4.0 * 2.0 * 2e9);
    is_about(copied(Way::ToHost), 4.0 * 2e9);
    let optimizer = vec![Offload::Optimizer];
    let step = Training { offload: optimizer, ..training(Sharding::Zero2) }.step().unwrap();
    let back = step.iter().filter(|of| of.route.way == Way::FromHost);
    is_about(back.map(Communication::moved).sum(), 2e9);
}

#[test]
fn what_does_not_fit_together_is_told() {
    let refused = |training: Training| training.step().unwrap_err();
    let usual = || training(Sharding::Zero3);
    for (told, training) in [
        ("8 GPUs are no multiple of 3", Training { tensor: 3, ..usual() }),
        ("are no multiple of 1 (--tensor-parallel) x 0", Training { pipeline: 0, ..usual() }),
        ("0 GPUs are no multiple", Training { ranks: 0, ..usual() }),
        ("in 4 layers cannot be in 8 parts", Training { layers: 4, pipeline: 8, ..usual() }),
        ("give --hidden and --sequence", Training { hidden: None, tensor: 2, ..usual() }),
        (
            "--offload params needs --sharding zero3",
            Training { offload: vec![Offload::Params], ..training(Sharding::Zero2) },
        ),
        (
            "--offload optimizer needs --sharding zero2",
            Training { offload: vec![Offload::Optimizer], ..training(Sharding::Ddp) },
        ),
    ] {
        let sentence = refused(training);
        assert!(sentence.contains(told), "{sentence}");
    }
    // One GPU has nobody to tell anything.
    assert_eq!(Training { ranks: 1, ..usual() }.step(), Ok(Vec::new()));
}

#[test]
fn the_parameters_of_models_follow_from_their_dimensions() {
    const TOKENS: u64 = 128_256;
    // Table 3 has 8 heads of keys and values, of 128 elements each, and the width inside of a layer.
    for (model, inside) in MODELS.iter().zip([14_336, 28_672, 53_248]) {
        let width = model.hidden;
        let attention = 2 * width * width + 2 * width * 8 * 128;
        let layer = attention + 3 * width * inside + 2 * width;
        let all = u64::from(model.layers) * layer + 2 * TOKENS * width + width;
        assert_eq!(all, model.parameters, "{}", model.name);
    }
}
