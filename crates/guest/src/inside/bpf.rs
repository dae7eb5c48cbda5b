//! Assembles what to do about each system call into a program for the kernel's filter.
//!
//! The kernel tries the program for every call number when it is loaded, once for each tool process,
//! so a chain of comparisons costs half a millisecond there. A search tree over the numbers does not.

use std::collections::BTreeMap;

use libc::sock_filter as Instruction;

pub(super) type Program = Vec<Instruction>;

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    /// It fails with this error number.
    Refuse(i32),
    /// It fails with `EPERM` if one of these holds.
    RefuseIf(Vec<Rule>),
    /// It does nothing and says that it did, if one of these holds.
    IgnoreIf(Vec<Rule>),
}

/// Conditions that must all be met.
pub(super) type Rule = Vec<Condition>;

/// Something about one argument, of which the low 32 bits count: the kernel reads no more of any
/// number that is looked at here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Is {
        argument: u32,
        value: u32,
    },
    IsNot {
        argument: u32,
        value: u32,
    },
    /// The same of the high 32 bits, which pointers have.
    HighIsNot {
        argument: u32,
        value: u32,
    },
    /// The bits of `mask` have exactly this value.
    Bits {
        argument: u32,
        mask: u32,
        value: u32,
    },
}

/// A program for these calls. Others are allowed up to the call `unknown_from`; that and all after it
/// fail as on a kernel that does not have them.
pub(super) fn assemble(calls: &BTreeMap<u32, Verdict>, unknown_from: u32) -> Program {
    let stretches = stretches(calls, unknown_from);
    let mut program = vec![
        instruction(LOAD, ARCHITECTURE_OFFSET),
        jump(JUMP_IF_EQUAL, ARCHITECTURE, 1, 0),
        // Calls of another architecture (i386 by `int 0x80`) have other numbers.
        instruction(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, NUMBER_OFFSET),
    ];
    program.extend(search(&stretches));
    program
}

/// Where what is done changes: each verdict with the first call that it is for.
fn stretches(calls: &BTreeMap<u32, Verdict>, unknown_from: u32) -> Vec<(u32, Verdict)> {
    let mut stretches: Vec<(u32, Verdict)> = Vec::new();
    let known = (0..unknown_from).map(|call| calls.get(&call).cloned().unwrap_or(Verdict::Allow));
    let unknown = Verdict::Refuse(libc::ENOSYS);
    for (call, verdict) in (0..).zip(known.chain([unknown])) {
        if stretches.last().is_none_or(|(_, last)| *last != verdict) {
            stretches.push((call, verdict));
        }
    }
    stretches
}

fn search(stretches: &[(u32, Verdict)]) -> Program {
    if let [(_, verdict)] = stretches {
        return carry_out(verdict);
    }
    let (low, high) = stretches.split_at(stretches.len() / 2);
    let first_of_high = high[0].0;
    let (low, high) = (search(low), search(high));
    let mut program = match u8::try_from(low.len()) {
        Ok(over_low) => vec![jump(JUMP_IF_AT_LEAST, first_of_high, over_low, 0)],
        // Further than a condition can jump.
        Err(_) => {
            vec![jump(JUMP_IF_AT_LEAST, first_of_high, 0, 1), instruction(JUMP, low.len() as u32)]
        }
    };
    program.extend(low);
    program.extend(high);
    program
}

fn carry_out(verdict: &Verdict) -> Program {
    match verdict {
        Verdict::Allow => vec![instruction(RETURN, libc::SECCOMP_RET_ALLOW)],
        Verdict::Refuse(errno) => vec![refuse(*errno)],
        Verdict::RefuseIf(rules) => if_any_holds(rules, refuse(libc::EPERM)),
        Verdict::IgnoreIf(rules) => if_any_holds(rules, refuse(NO_ERROR)),
    }
}

/// With this number a call that is not made returns 0.
const NO_ERROR: i32 = 0;

fn if_any_holds(rules: &[Rule], end: Instruction) -> Program {
    let mut program: Program = rules.iter().flat_map(|rule| if_it_holds(rule, end)).collect();
    program.push(instruction(RETURN, libc::SECCOMP_RET_ALLOW));
    program
}

/// Goes on after itself when a condition is not met.
fn if_it_holds(rule: &[Condition], end: Instruction) -> Program {
    let mut program = vec![end];
    // From the last to the first, so that the way to the end is known.
    for condition in rule.iter().rev() {
        let to_the_end = u8::try_from(program.len()).expect("a rule has few conditions");
        let low = |argument| FIRST_ARGUMENT_OFFSET + 8 * argument;
        let (offset, mask, value, met, unmet) = match *condition {
            Condition::Is { argument, value } => (low(argument), None, value, 0, to_the_end),
            Condition::IsNot { argument, value } => (low(argument), None, value, to_the_end, 0),
            Condition::HighIsNot { argument, value } => {
                (low(argument) + 4, None, value, to_the_end, 0)
            }
            Condition::Bits { argument, mask, value } => {
                (low(argument), Some(mask), value, 0, to_the_end)
            }
        };
        let mut check = vec![instruction(LOAD, offset)];
        check.extend(mask.map(|mask| instruction(AND, mask)));
        check.push(jump(JUMP_IF_EQUAL, value, met, unmet));
        program.splice(0..0, check);
    }
    program
}

fn refuse(errno: i32) -> Instruction {
    instruction(RETURN, libc::SECCOMP_RET_ERRNO | errno as u32)
}

// Where things are in the kernel's `struct seccomp_data`. Both architectures put the low half of an
// argument first.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const FIRST_ARGUMENT_OFFSET: u32 = 16;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP_IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

fn instruction(code: u32, k: u32) -> Instruction {
    Instruction { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(code: u32, k: u32, if_so: u8, if_not: u8) -> Instruction {
    Instruction { code: code as u16, jt: if_so, jf: if_not, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with a program, for one call.
    fn run(program: &Program, architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = [number, architecture, 0, 0].map(u32::to_ne_bytes).concat();
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let (mut at, mut value) = (0, 0);
        loop {
            let Instruction { code, jt, jf, k } = program[at];
            at += 1;
            let choose = |met: bool| usize::from(if met { jt } else { jf });
            match u32::from(code) {
                LOAD => {
                    let word = &data[k as usize..k as usize + 4];
                    value = u32::from_ne_bytes(word.try_into().unwrap());
                }
                AND => value &= k,
                JUMP => at += k as usize,
                JUMP_IF_EQUAL => at += choose(value == k),
                JUMP_IF_AT_LEAST => at += choose(value >= k),
                RETURN => return k,
                other => panic!("the kernel's quick test does not know {other:#x}"),
            }
        }
    }

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    fn refused(errno: i32) -> u32 {
        libc::SECCOMP_RET_ERRNO | errno as u32
    }

    #[test]
    fn every_call_meets_its_verdict() {
        // So many that a condition cannot jump over half of them.
        let calls: BTreeMap<u32, Verdict> =
            (0..900).filter(|call| call % 3 == 0).map(|call| (call, Verdict::Refuse(1))).collect();
        let program = assemble(&calls, 1000);
        for call in 0..1200 {
            let expected = match call {
                1000.. => refused(libc::ENOSYS),
                _ if calls.contains_key(&call) => refused(1),
                _ => ALLOWED,
            };
            assert_eq!(run(&program, ARCHITECTURE, call, [0; 6]), expected, "{call}");
        }
        let x32 = 0x4000_0000 | 7;
        assert_eq!(run(&program, ARCHITECTURE, x32, [0; 6]), refused(libc::ENOSYS));
        let i386 = 0x4000_0003;
        assert_eq!(run(&program, i386, 7, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn arguments_are_looked_at_in_their_low_halves() {
        let rules = vec![
            vec![
                Condition::IsNot { argument: 0, value: 1 },
                Condition::IsNot { argument: 0, value: 2 },
            ],
            vec![
                Condition::Is { argument: 0, value: 2 },
                Condition::Bits { argument: 1, mask: 0xf, value: 3 },
            ],
        ];
        let program = assemble(&BTreeMap::from([(41, Verdict::RefuseIf(rules))]), 100);
        let high = 7 << 32;
        for (arguments, expected) in [
            ([1, 0], ALLOWED),
            ([1 | high, 0], ALLOWED),
            ([3, 0], refused(libc::EPERM)),
            ([2, 0x13], refused(libc::EPERM)),
            ([2, 0x13 | high], refused(libc::EPERM)),
            ([2, 0x14], ALLOWED),
            ([1, 3], ALLOWED),
        ] {
            let [first, second] = arguments;
            let all = [first, second, 0, 0, 0, 0];
            assert_eq!(run(&program, ARCHITECTURE, 41, all), expected, "{arguments:?}");
            assert_eq!(run(&program, ARCHITECTURE, 40, all), ALLOWED);
        }
    }

    #[test]
    fn pointers_are_looked_at_in_both_halves() {
        let to_four = Condition::Is { argument: 0, value: 4 };
        let rules = vec![
            vec![to_four, Condition::IsNot { argument: 1, value: 0 }],
            vec![to_four, Condition::HighIsNot { argument: 1, value: 0 }],
        ];
        let program = assemble(&BTreeMap::from([(41, Verdict::IgnoreIf(rules))]), 100);
        for (arguments, expected) in [
            ([4, 0], ALLOWED),
            ([4, 1], refused(0)),
            ([4, 1 << 32], refused(0)),
            ([4, u64::MAX], refused(0)),
            ([4 | 1 << 32, 1], refused(0)),
            ([5, 1], ALLOWED),
        ] {
            let [first, second] = arguments;
            let all = [first, second, 0, 0, 0, 0];
            assert_eq!(run(&program, ARCHITECTURE, 41, all), expected, "{arguments:?}");
        }
    }
}
