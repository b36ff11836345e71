//! Requests to `sharkd` and its answers: JSON-RPC, one object a line. Answers are untrusted: the
//! dissectors that made the answers read hostile packets.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};
use utoipa::ToSchema;

const FIELDS_MAX: usize = 20_000;
/// Maximum number of characters `{` in a tree, an upper bound of its nodes. A hostile answer may
/// have very many small nodes (`{}`). sharkd writes some 60 bytes a node, so 16 MiB of output have
/// fewer nodes.
const NODES_MAX: usize = 300_000;
const DEPTH_MAX: usize = 64;
/// Maximum number of bytes of a label. Wireshark truncates labels at 240 bytes.
const LABEL_BYTES_MAX: usize = 1024;
/// Maximum number of bytes of a field's display filter. The filter of a payload field contains the
/// whole payload.
const FILTER_BYTES_MAX: usize = 256;
const SOURCES_MAX: usize = 32;
/// Maximum number of bytes that are kept of a data source from sharkd.
const SOURCE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) sources: Vec<DataSource>,
    pub(crate) fields: Vec<FieldBody>,
    pub(crate) is_truncated: bool,
}

#[derive(Debug)]
pub(crate) struct DataSource {
    pub(crate) name: String,
    /// Number of bytes of the source. `data` may have only the first bytes.
    pub(crate) length: usize,
    pub(crate) data: Vec<u8>,
}

/// A line of the packet details.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PacketField)]
pub(crate) struct FieldBody {
    /// The text that Wireshark shows.
    label: String,
    /// The field is a protocol layer.
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    layer: bool,
    /// A display filter of Wireshark for this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    filter: Option<String>,
    /// Wireshark derived the field: the packet does not contain the field as such.
    #[serde(skip_serializing_if = "is_false")]
    #[schema(required = false)]
    generated: bool,
    /// Severity in Wireshark's expert information: Comment, Chat, Note, Warning or Error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    severity: Option<String>,
    /// Index of the data source with the field's bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    source: Option<usize>,
    /// First byte of the field in its source.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    start: Option<u64>,
    /// Number of bytes of the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    length: Option<u64>,
    /// ID of the packet that the label names by a frame number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    frame: Option<String>,
    #[serde(skip)]
    frame_number: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false, no_recursion)]
    fields: Vec<FieldBody>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(value: &bool) -> bool {
    !value
}

impl FieldBody {
    /// Sets `frame` of this field and its subfields. `id_of` returns the ID of a packet by its
    /// frame number, from 1.
    pub(crate) fn name_frames(&mut self, id_of: &impl Fn(usize) -> Option<String>) {
        self.frame = self.frame_number.and_then(id_of);
        let fields = self.fields.iter_mut();
        fields.for_each(|field| field.name_frames(id_of));
    }
}

pub(super) fn requests(file: &str, frame: usize) -> Vec<u8> {
    let load = json!({"jsonrpc": "2.0", "id": 1, "method": "load", "params": {"file": file}});
    let parameters = json!({"frame": frame, "proto": true, "bytes": true});
    let frame = json!({"jsonrpc": "2.0", "id": 2, "method": "frame", "params": parameters});
    format!("{load}\n{frame}\n").into_bytes()
}

#[derive(Deserialize)]
struct Response<'a> {
    id: u64,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct FrameResult<'a> {
    #[serde(borrow)]
    tree: Option<&'a RawValue>,
    #[serde(default)]
    ds: Vec<SourceNode>,
}

#[derive(Deserialize)]
struct SourceNode {
    name: String,
    bytes: String,
}

#[derive(Deserialize)]
struct Node<'a> {
    #[serde(default)]
    l: String,
    t: Option<String>,
    f: Option<String>,
    s: Option<String>,
    h: Option<[u64; 2]>,
    ds: Option<usize>,
    fnum: Option<usize>,
    #[serde(default)]
    g: bool,
    #[serde(default)]
    v: bool,
    /// The child nodes as JSON text, parsed one level at a time, so that a deep tree does not
    /// exhaust the stack.
    #[serde(borrow)]
    n: Option<&'a RawValue>,
}

/// Reads the answer to [`requests`] from sharkd's `output`. `None`: the output is invalid or has no
/// tree, or the tree has more than [`NODES_MAX`] characters `{`.
pub(super) fn answer(output: &[u8], packet: &[u8]) -> Option<Frame> {
    let text = String::from_utf8_lossy(output);
    let responses = text.lines().map(serde_json::from_str::<Response<'_>>);
    let mut responses = responses.filter_map(Result::ok);
    let result = responses.find(|response| response.id == 2)?.result?;
    let result: FrameResult<'_> = serde_json::from_str(result.get()).ok()?;
    let tree = result.tree?;
    if tree.get().matches('{').count() > NODES_MAX {
        return None;
    }
    let frame = DataSource {
        name: "Frame".to_owned(),
        length: packet.len(),
        data: packet.to_vec(),
    };
    let others = result.ds.into_iter().filter_map(|source| {
        let mut data = BASE64_STANDARD.decode(source.bytes).ok()?;
        let length = data.len();
        data.truncate(SOURCE_BYTES_MAX);
        let name = bounded(source.name);
        Some(DataSource { name, length, data })
    });
    let sources: Vec<_> = [frame]
        .into_iter()
        .chain(others)
        .take(SOURCES_MAX)
        .collect();
    let mut reader = TreeReader {
        sources: &sources,
        left: FIELDS_MAX,
        is_truncated: false,
    };
    let fields = reader.fields(tree, 0);
    let is_truncated = reader.is_truncated;
    Some(Frame {
        sources,
        fields,
        is_truncated,
    })
}

struct TreeReader<'s> {
    sources: &'s [DataSource],
    /// Number of fields for which there is room.
    left: usize,
    is_truncated: bool,
}

impl TreeReader<'_> {
    fn fields(&mut self, nodes: &RawValue, depth: usize) -> Vec<FieldBody> {
        let nodes = serde_json::from_str::<Vec<Node<'_>>>(nodes.get());
        let Ok(nodes) = nodes else {
            self.is_truncated = true;
            return Vec::new();
        };
        let mut fields = Vec::new();
        for node in nodes {
            if node.v {
                continue; // hidden, as in Wireshark
            }
            if self.left == 0 || depth >= DEPTH_MAX {
                self.is_truncated = true;
                break;
            }
            self.left -= 1;
            let children = node.n.map(|nodes| self.fields(nodes, depth + 1));
            fields.push(self.field(node, children.unwrap_or_default()));
        }
        fields
    }

    fn field(&self, node: Node<'_>, fields: Vec<FieldBody>) -> FieldBody {
        let source = node.ds.unwrap_or(0);
        let length = self.sources.get(source).map_or(0, |it| it.length as u64);
        let range = node.h.filter(|[start, bytes]| {
            *bytes > 0 && start.checked_add(*bytes).is_some_and(|end| end <= length)
        });
        let is_useful = |filter: &String| filter != "text" && filter.len() <= FILTER_BYTES_MAX;
        FieldBody {
            label: bounded(node.l),
            layer: node.t.as_deref() == Some("proto"),
            filter: node.f.filter(is_useful),
            generated: node.g,
            severity: node.s.map(bounded),
            source: range.map(|_| source),
            start: range.map(|[start, _]| start),
            length: range.map(|[_, bytes]| bytes),
            frame: None,
            frame_number: node.fnum,
            fields,
        }
    }
}

fn bounded(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LABEL_BYTES_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree_of(result: &str) -> Option<Frame> {
        let output = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{}}}}\n{{\"id\":2,\"result\":{result}}}\n"
        );
        answer(output.as_bytes(), &[1, 2, 3])
    }

    #[test]
    fn the_tree_of_an_answer_is_bounded() {
        let one = r#"{"tree":[{"l":"a","h":[1,2],"f":"x == 1","s":"Note","g":true,
            "n":[{"l":"b","ds":1,"h":[0,1],"fnum":1},{"l":"hidden","v":true}]},
            {"l":"outside","h":[2,2],"f":"text"},{"l":"no source","ds":9,"h":[0,1]},
            {"l":"wraps","h":[1,18446744073709551615]}],
            "bytes":"AQID","ds":[{"name":"Reassembled","bytes":"aGk="}]}"#;
        let frame = tree_of(&one.replace('\n', " ")).unwrap();
        let all = serde_json::to_value(&frame.fields).unwrap();
        let first = json!({"label": "a", "filter": "x == 1", "generated": true, "severity": "Note",
            "source": 0, "start": 1, "length": 2,
            "fields": [{"label": "b", "source": 1, "start": 0, "length": 1}]});
        assert_eq!(all[0], first);
        assert_eq!(all[1], json!({"label": "outside"}));
        assert_eq!(all[2], json!({"label": "no source"}));
        assert_eq!(all[3], json!({"label": "wraps"}));
        assert_eq!((frame.sources[1].length, frame.is_truncated), (2, false));
        let many = vec![r#"{"l":"x"}"#; FIELDS_MAX + 1].join(",");
        let frame = tree_of(&format!("{{\"tree\":[{many}]}}")).unwrap();
        assert_eq!((frame.fields.len(), frame.is_truncated), (FIELDS_MAX, true));
        let more = vec!["{}"; NODES_MAX + 1].join(",");
        assert!(tree_of(&format!("{{\"tree\":[{more}]}}")).is_none());
        let long = "é".repeat(LABEL_BYTES_MAX);
        let frame = tree_of(&format!("{{\"tree\":[{{\"l\":\"{long}\"}}]}}")).unwrap();
        assert_eq!(frame.fields[0].label.len(), LABEL_BYTES_MAX);
    }

    /// A tree that is too deep for serde_json's recursion is refused or truncated, and does not
    /// exhaust the stack.
    #[test]
    fn a_deep_tree_is_cut() {
        let deep = 100_000;
        let (open, close) = (r#"[{"l":"x","n":"#.repeat(deep), "}]".repeat(deep));
        let frame = tree_of(&format!("{{\"tree\":{open}[]{close}}}"));
        if let Some(frame) = frame {
            assert!(frame.is_truncated);
        }
    }

    #[test]
    fn wrong_answers_are_none() {
        for wrong in [
            "",
            "{}",
            "[1]",
            r#"{"id":2}"#,
            r#"{"id":2,"result":{}}"#,
            "\u{0}",
        ] {
            assert!(answer(wrong.as_bytes(), &[]).is_none(), "{wrong}");
        }
        assert!(answer(&[0xff; 9], &[]).is_none());
    }
}
