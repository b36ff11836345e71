//! Parts of the OpenAPI document that are common to all operations. Operation IDs and roles are
//! from the table of operations.

use utoipa::{
    Modify, PartialSchema, ToSchema,
    openapi::{
        Components, ContentBuilder, Discriminator, Header, KnownFormat, Object, ObjectBuilder,
        OpenApi, Ref, RefOr, ResponseBuilder,
        extensions::ExtensionsBuilder,
        path::Operation,
        schema::{Schema, SchemaFormat, SchemaType, Type},
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};

use crate::{
    bodies::event::EventBody,
    operations::{Limited, OPERATIONS},
    problem::{Cause, ProblemBody, cause_schema},
    role::Role,
};

const TOKEN: &str = "token";

/// Adds the common parts to the document.
pub(crate) struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut OpenApi) {
        document.info.description = Some(include_str!("description.md").to_owned());
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "A token from `retroscope token`. The unix socket needs no token.",
            ));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme(TOKEN, SecurityScheme::Http(scheme.build()));
        for (name, schema) in [
            (ProblemBody::name(), ProblemBody::schema()),
            (Cause::name(), cause_schema()),
        ] {
            components.schemas.insert(name.into_owned(), schema);
        }
        discriminate(components);
        for known in OPERATIONS {
            let item = document.paths.paths.get_mut(known.path);
            let operation = item.and_then(|item| match known.method.as_str() {
                "GET" => item.get.as_mut(),
                "PUT" => item.put.as_mut(),
                "POST" => item.post.as_mut(),
                "PATCH" => item.patch.as_mut(),
                "DELETE" => item.delete.as_mut(),
                _ => None,
            });
            if let Some(operation) = operation {
                operation.operation_id = Some(known.id.to_owned());
                complete(operation, known.role.map(Role::as_str));
                if known.limited == Limited::MayNot {
                    let text = operation.description.get_or_insert_default();
                    if !text.is_empty() {
                        text.push_str("\n\n");
                    }
                    text.push_str("Not for tokens with a filter or a snap length.");
                }
            }
        }
    }
}

/// Makes a discriminated union of the events. Each kind becomes a named schema, because a
/// discriminator selects among names only.
fn discriminate(components: &mut Components) {
    let (all, by) = (EventBody::name(), "kind");
    let Some(RefOr::T(Schema::OneOf(mut union))) = components.schemas.remove(&*all) else {
        return;
    };
    let mut kinds = Vec::new();
    for item in &mut union.items {
        let Some(kind) = kind_of(item, by) else {
            continue;
        };
        let name = format!("{}Event", kind[..1].to_uppercase() + &kind[1..]);
        let named = std::mem::replace(item, Ref::from_schema_name(&name).into());
        kinds.push((kind, format!("#/components/schemas/{name}")));
        components.schemas.insert(name, named);
    }
    union.discriminator = Some(Discriminator::with_mapping(by, kinds));
    let union = RefOr::T(Schema::OneOf(union));
    components.schemas.insert(all.into_owned(), union);
}

/// The value of the property `by`: its first enum value.
fn kind_of(schema: &RefOr<Schema>, by: &str) -> Option<String> {
    match schema {
        RefOr::T(Schema::AllOf(all)) => all.items.iter().find_map(|part| kind_of(part, by)),
        RefOr::T(Schema::Object(object)) => match object.properties.get(by)? {
            RefOr::T(Schema::Object(kind)) => {
                let value = kind.enum_values.as_ref()?.first()?;
                value.as_str().map(str::to_owned)
            }
            _ => None,
        },
        _ => None,
    }
}

fn complete(operation: &mut Operation, role: Option<&str>) {
    let parameters = operation.parameters.iter_mut().flatten();
    parameters.for_each(|parameter| {
        // An optional parameter can be left out, but not be null: a URL and a header cannot express
        // null.
        if let Some(RefOr::T(Schema::Object(object))) = &mut parameter.schema
            && let SchemaType::Array(kinds) = &mut object.schema_type
        {
            kinds.retain(|kind| *kind != Type::Null);
            if let [kind] = &**kinds {
                object.schema_type = SchemaType::Type(kind.clone());
            }
        }
    });
    if let Some(role) = role {
        operation.security = Some(vec![SecurityRequirement::new(TOKEN, Vec::<String>::new())]);
        let extensions = ExtensionsBuilder::new().add("x-role", role).build();
        operation
            .extensions
            .get_or_insert_default()
            .merge(extensions);
    }
    let refusal = |text: &str| {
        let problem = Ref::from_schema_name("Problem");
        let content = ContentBuilder::new().schema(Some(problem)).build();
        let seconds = Object::with_type(Type::Integer);
        let mut again = Header::new(seconds);
        again.description = Some("With 429 and 503: seconds until a retry may succeed.".to_owned());
        let response = ResponseBuilder::new()
            .description(text)
            .header("Retry-After", again)
            .content("application/problem+json", content);
        RefOr::T(response.build())
    };
    let all = &mut operation.responses.responses;
    for (status, text) in [
        (
            "4XX",
            "Refused: `type` has the cause, `detail` the reason and the remedy.",
        ),
        (
            "5XX",
            "Not possible now: `type` has the cause, `detail` the reason and the remedy.",
        ),
    ] {
        all.entry(status.to_owned())
            .or_insert_with(|| refusal(text));
    }
}

/// A body of bytes, such as a capture file.
pub(crate) struct Binary;

impl PartialSchema for Binary {
    fn schema() -> RefOr<Schema> {
        let bytes = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
        bytes.into()
    }
}

impl ToSchema for Binary {}

/// Removes Rust syntax from the document: `None` becomes `null`, and a link to `A::b` becomes the
/// name `A.b`.
pub(crate) fn without_rust(text: &str) -> String {
    let text = text.replace("`None`", "`null`");
    let mut parts = text.split("[`");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some((name, rest)) = part.split_once("`]") else {
            plain.push_str("[`");
            plain.push_str(part);
            continue;
        };
        let rest = match rest.strip_prefix('(').and_then(|it| it.split_once(')')) {
            Some((_target, rest)) => rest,
            None => rest,
        };
        plain.push_str(&format!("`{}`{rest}", name.replace("::", ".")));
    }
    plain
}
