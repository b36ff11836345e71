//! The user's expressions, checked before anything starts.

use std::{fmt, sync::Arc};

use retroscope_filter::{Filter, FilterError, Template};

use crate::{
    analysis::{
        native::NativeCode,
        predicate::Expression,
        prepared::{LinkTypes, Prepared, context, mode},
        triggers::Triggers,
    },
    intake::capture_filter::CaptureFilter,
};

/// An expression that compiles for none of the sources: the user's mistake.
#[derive(Debug)]
pub struct ExpressionError {
    /// The option it stands in, for example `--trigger`.
    pub option: &'static str,
    /// What is wrong, and where.
    pub error: FilterError,
}

impl fmt::Display for ExpressionError {
    /// Several lines: the message, the expression, a caret under the offending word.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rendered = self.error.render();
        let rendered = rendered.strip_prefix("filter: ").unwrap_or(&rendered);
        write!(f, "{}: {rendered}", self.option)
    }
}

/// The user's texts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Texts<'a> {
    pub(crate) triggers: &'a [String],
    pub(crate) dump: &'a str,
    pub(crate) manual: &'a str,
    pub(crate) filter: Option<&'a str>,
}

/// All expressions of a recorder, checked.
#[derive(Debug)]
pub(crate) struct Expressions {
    pub(crate) triggers: Triggers,
    pub(crate) template: Arc<Template>,
    pub(crate) manual: Expression,
    pub(crate) filter: Option<CaptureFilter>,
}

impl Expressions {
    /// Compiles everything for the link types of the sources, to machine code too.
    pub(crate) fn new(
        texts: &Texts<'_>,
        link_types: &LinkTypes<'_>,
        offline: bool,
        native: &Arc<NativeCode>,
    ) -> Result<Self, ExpressionError> {
        let mode = mode(offline);
        let plain = |option, text: &str| {
            let prepared = Filter::resolved(text).and_then(|filter| {
                let mut prepared = Prepared::new(filter, mode);
                prepared.check(link_types)?;
                prepared.seal(link_types);
                Ok(prepared)
            });
            prepared.map_err(|error| ExpressionError { option, error })
        };
        let triggers = Triggers::new(texts.triggers, link_types, offline, native);
        let triggers = triggers.map_err(|error| ExpressionError {
            option: "--trigger",
            error,
        })?;
        let template = Template::parse(texts.dump).and_then(|template| {
            let template = template.resolve()?;
            link_types.first_or_any(|link_type| template.check(context(link_type, mode)))?;
            if template.has_names() {
                let more = (link_types.more)().into_iter();
                more.for_each(|link_type| template.prepare(context(link_type, mode)));
            }
            template.seal();
            Ok(template)
        });
        let template = template.map_err(|error| ExpressionError {
            option: "--dump",
            error,
        })?;
        let manual = plain("--manual-dump", texts.manual)?;
        let manual = Expression::plain(manual.filter.filled().clone());
        let filter = texts
            .filter
            .map(|text| plain("--filter", text))
            .transpose()?;
        let filter = filter.map(|prepared| CaptureFilter::new(prepared, native));
        Ok(Self {
            triggers,
            template: Arc::new(template),
            manual,
            filter,
        })
    }
}
