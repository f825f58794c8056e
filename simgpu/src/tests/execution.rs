//! What operations do, and when.

use super::*;
use crate::cuda::abi::*;

#[test]
fn bytes_go_to_the_gpu_and_back() {
    alone(|| {
        begin(machine());
        let there = allocate(1000);
        let sent: Vec<u8> = (0..1000).map(|n| (n % 251) as u8).collect();
        let mut back = vec![0_u8; 1000];
        ok(cuMemcpyHtoD_v2(there, sent.as_ptr() as u64, 1000));
        ok(cuMemcpyDtoH_v2(back.as_mut_ptr() as u64, there, 1000));
        assert_eq!(sent, back);
    });
}
