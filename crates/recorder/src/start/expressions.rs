//! Checks of the user's expressions.

use std::{fmt, sync::Arc};

use retroscope_alert::LabelTemplate;
use retroscope_filter::{Filter, FilterError};
use retroscope_flow::Cutoff;
use retroscope_packet::LinkType;

use crate::{
    analysis::{
        derivation::Templates,
        native::NativeCode,
        predicate::DumpExpression,
        prepared::{LinkTypes, PreparedFilter, mode, template},
        triggers::Triggers,
    },
    intake::capture_filter::CaptureFilter,
    start::config::{ClassCutoff, Config},
};

/// An expression that compiles for no source: the user's mistake.
#[derive(Debug)]
pub struct ExpressionError {
    /// The option with the expression, for example `--trigger`.
    pub option: &'static str,
    /// The mistake and its place.
    pub error: FilterError,
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rendered = self.error.render();
        let rendered = rendered.strip_prefix("filter: ").unwrap_or(&rendered);
        write!(f, "{}: {rendered}", self.option)
    }
}

/// Checks an expression that needs no trigger packet, before there is a source. Looks names up,
/// which may take long.
///
/// # Errors
/// The expression compiles for none of the usual link types.
pub fn check_expression(text: &str) -> Result<(), FilterError> {
    let mut prepared = PreparedFilter::new(Filter::resolved(text)?, mode(false));
    prepared.check(&LinkTypes::new(&[], &usual))
}

/// Checks a dump template, which a trigger packet fills in.
///
/// # Errors
/// As [`check_expression`].
pub fn check_template(text: &str) -> Result<(), FilterError> {
    template(text, &LinkTypes::new(&[], &usual), mode(false)).map(|_| ())
}

/// Checks a dump template for alerts, which the labels of an alert fill in ([`LabelTemplate`]).
///
/// # Errors
/// As [`check_expression`], or the text is no valid template.
pub fn check_alert_template(text: &str) -> Result<(), FilterError> {
    check_label_template(text, &LinkTypes::new(&[], &usual))
}

/// Checks that a template for alerts compiles for a link type, with addresses of IPv4 or of IPv6.
pub(super) fn check_label_template(
    text: &str,
    link_types: &LinkTypes<'_>,
) -> Result<(), FilterError> {
    let labels = LabelTemplate::new(text).map_err(|why| FilterError::refused(why, text))?;
    let [v4, v6] = labels.samples().map(|sample| {
        let filled = template(&sample.expression, link_types, mode(false))?;
        filled.filled_on(0).map(drop)
    });
    v4.or_else(|error| v6.map_err(|_| error))
}

/// Usual link types of interfaces in addition to Ethernet: of the kernel's `any`, of tunnels, of
/// radio in monitor mode, of loopback in files.
fn usual() -> Vec<LinkType> {
    [113, 276, 101, 12, 127, 105, 0, 9].map(LinkType).to_vec()
}

#[derive(Debug)]
pub(crate) struct CheckedExpressions {
    pub(crate) triggers: Triggers,
    pub(crate) templates: Templates,
    pub(crate) manual: DumpExpression,
    pub(crate) filter: Option<CaptureFilter>,
    pub(crate) classes: Vec<(Option<CaptureFilter>, Cutoff)>,
}

impl CheckedExpressions {
    /// Compiles the expressions for the link types of the sources, and submits filters for
    /// compilation to machine code.
    pub(crate) fn new(
        config: &Config,
        link_types: &LinkTypes<'_>,
        native: &Arc<NativeCode>,
    ) -> Result<Self, ExpressionError> {
        let mode = mode(config.offline);
        let plain = |option, text: &str| {
            let prepared = Filter::resolved(text).and_then(|filter| {
                let mut prepared = PreparedFilter::new(filter, mode);
                prepared.check(link_types)?;
                prepared.seal(link_types);
                Ok(prepared)
            });
            prepared.map_err(|error| ExpressionError { option, error })
        };
        let triggers = Triggers::new(&config.triggers, link_types, config.offline, native);
        let triggers = triggers.map_err(|error| ExpressionError {
            option: "--trigger",
            error,
        })?;
        let template = |option, text: &str| {
            template(text, link_types, mode).map_err(|error| ExpressionError { option, error })
        };
        // A dump script may return `$flow`, so the flows of later fragments must be known.
        let default = match config.scripts.dump {
            Some(_) => "$flow",
            None => &config.dump,
        };
        let default = template("--dump", default)?;
        let own = config.requests.iter().enumerate();
        let own = own.filter_map(|(number, request)| Some((number, request.dump.as_deref()?)));
        let own = own.map(|(number, text)| Ok((number, template("dump of a rule", text)?)));
        let own = own.collect::<Result<_, _>>()?;
        for text in config
            .requests
            .iter()
            .filter_map(|request| request.alert_dump.as_deref())
        {
            check_label_template(text, link_types).map_err(|error| ExpressionError {
                option: "alert-dump",
                error,
            })?;
        }
        let manual = plain("manual-dump", &config.manual_dump)?;
        let manual = DumpExpression::plain(manual.filter.filled().clone());
        let filter = config.filter.as_ref();
        let filter = filter.map(|text| plain("--filter", text)).transpose()?;
        let filter = filter.map(|prepared| CaptureFilter::new(prepared, native));
        let class = |of: &ClassCutoff| {
            let text = of.class.as_deref();
            let prepared = text.map(|text| plain("--cutoff", text)).transpose()?;
            let filter = prepared.map(|prepared| CaptureFilter::new(prepared, native));
            Ok((filter, of.cutoff))
        };
        let classes = config.cutoffs.iter().map(class).collect::<Result<_, _>>()?;
        Ok(Self {
            classes,
            triggers,
            templates: Templates { default, own },
            manual,
            filter,
        })
    }
}
