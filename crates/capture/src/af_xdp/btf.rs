//! Finds a function in the kernel's type information (BTF): a program calls a function of the
//! kernel by the identifier of its type. `Documentation/bpf/btf.rst` of the kernel has the format.

/// `BTF_MAGIC`, and bytes of `struct btf_type`.
const MAGIC: u16 = 0xeb9f;
const TYPE_BYTES: usize = 12;

/// `BTF_KIND_FUNC`.
const FUNCTION: u32 = 12;

/// The identifier of the function `name`. `None`: there is no such function, or `btf` is damaged or
/// has an unknown kind of type.
pub(super) fn function_id(btf: &[u8], name: &str) -> Option<i32> {
    let half = |at: usize| Some(u16::from_ne_bytes(*btf.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_ne_bytes(*btf.get(at..)?.first_chunk()?));
    if half(0)? != MAGIC {
        return None;
    }
    // Offsets and lengths of the types and of the strings are from byte 8 of the header on. The
    // offsets count from the end of the header, whose length is at byte 4.
    let part = |at: usize| {
        let start = word(4)?.checked_add(word(at)?)? as usize;
        btf.get(start..start.checked_add(word(at + 4)? as usize)?)
    };
    let (mut types, strings) = (part(8)?, part(16)?);
    for id in 1.. {
        let (head, rest) = types.split_first_chunk::<TYPE_BYTES>()?;
        let [name_at, info] = [0, 4]
            .map(|at| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let kind = info >> 24 & 0x1f;
        if kind == FUNCTION
            && let Some(found) = strings.get(name_at as usize..)
            && found
                .strip_prefix(name.as_bytes())
                .is_some_and(|rest| rest.first() == Some(&0))
        {
            return Some(id);
        }
        types = rest.get(more_bytes(kind, info as usize & 0xffff)?..)?;
    }
    None
}

/// Bytes that follow a type of this kind with `members` members. `None`: the kind is unknown.
fn more_bytes(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // Pointers, forward declarations, typedefs, qualifiers, functions, floats, type tags.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections, enumerations of 64 bits.
        4 | 5 | 15 | 19 => 12 * members,
        // Enumerations, prototypes.
        6 | 13 => 8 * members,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type information with an integer, a structure with two members, and the functions `ab`, `a`.
    fn btf() -> Vec<u8> {
        let strings = b"\0ab\0a\0";
        let mut types: Vec<u32> = Vec::new();
        types.extend([4, 1 << 24, 4, 32]);
        types.extend([4, 4 << 24 | 2, 8, 4, 1, 0, 4, 1, 32]);
        types.extend([1, FUNCTION << 24, 2]);
        types.extend([4, FUNCTION << 24, 2]);
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let types_bytes = u32::try_from(4 * types.len()).unwrap();
        let strings_bytes = u32::try_from(strings.len()).unwrap();
        for word in [24, 0, types_bytes, types_bytes, strings_bytes] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(types.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn a_function_is_found_by_its_whole_name() {
        let btf = btf();
        assert_eq!(function_id(&btf, "ab"), Some(3));
        assert_eq!(function_id(&btf, "a"), Some(4));
        assert_eq!(function_id(&btf, "b"), None);
    }

    #[test]
    fn damaged_information_has_no_functions() {
        let whole = btf();
        for length in 0..whole.len() {
            function_id(&whole[..length], "a");
        }
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                function_id(&damaged, "b");
            }
        }
        assert_eq!(function_id(&whole[..whole.len() - 1], "a"), None);
    }
}
