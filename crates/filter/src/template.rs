//! Templates: expressions with variables that take their values from a trigger packet.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use retroscope_packet::{FlowKey, Parsed, community_id, community_id_of, flow_of, fragment_of};

use crate::{
    EXPRESSION_BYTES_MAX, FillError, FilledExpression, FilterError, FilterProblem, LinkContext,
    Variable, chain,
    compile::check_len,
    filled::{CommunityTerm, FilterPiece, FlowTerm, TermValues, name_too_late},
    names::{Name, NameMeaning, names},
    plan::EvaluationPlan,
    variable::{SampleFamily, VariableValue},
    words::{WordKind, words_and_tests},
};

/// An expression: pcap-filter(7) text that may contain any [`Variable`].
///
/// `$srcIP` and similar variables are placeholders of pcap-filter text. `$flow`, `$iface`,
/// `$communityId` and the payload terms (`payload contains "…"`, `payload startswith "…"`, `payload
/// matches /…/`) are Retroscope's own terms; `and or not ( )` join them to pcap-filter text.
///
/// libpcap compiles each piece of pcap-filter text between own terms separately. The effect of
/// `vlan` or `mpls` on later offsets, and of a load beyond the captured bytes, ends with the piece.
/// A primitive without qualifiers (`port 80 or 443`) takes the qualifiers from its own piece.
///
/// ```
/// use retroscope_filter::{Template, Variable};
///
/// let template = Template::parse("$flow and not port $srcPort")?;
/// assert_eq!(template.variables(), [Variable::Flow, Variable::SrcPort]);
/// # Ok::<(), retroscope_filter::FilterError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Template {
    text: Arc<str>,
    /// Variables and their bytes in `text`, in order.
    variables: Vec<(Range<usize>, Variable)>,
    /// Pieces of pcap-filter text, in order.
    pieces: Vec<TextPiece>,
    /// Replacements for names, made by [`Template::resolve`], in order.
    numbers: Vec<(Range<usize>, String)>,
    pub(crate) plan: Arc<EvaluationPlan>,
}

#[derive(Debug, Clone)]
struct TextPiece {
    bytes: Range<usize>,
    /// The piece with its compiled programs, shared by all expressions of the template. `None` if
    /// the piece contains a variable.
    fixed: Option<Arc<FilterPiece>>,
}

impl PartialEq for Template {
    /// Compares only the texts, so a template and its result of [`Template::resolve`] are equal.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Template {}

/// Facts of the trigger packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TriggerFacts {
    /// Headers of the trigger packet.
    pub parsed: Parsed,
    /// Ring-wide number of the trigger packet's interface.
    pub interface: u16,
    /// For a later fragment of TCP, UDP or SCTP, which has no ports: the flow of its datagram's
    /// first fragment, if known.
    pub first_fragment: Option<FlowKey>,
}

/// Values that a template takes from a trigger packet. Contains text only for `$communityId` of a
/// packet without ports.
///
/// For one template, equal values give equal expressions. Packets of a flow, in both directions,
/// have equal values for `$flow`, except later fragments whose first fragment is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TriggerValues {
    /// Values for pcap-filter text, indexed by variable.
    texts: [Option<VariableValue>; Variable::TEXTS],
    terms: TermValues,
}

/// A flow that is known without a packet of the flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownFlow {
    /// The flow's key. Gives a value for `$flow` and, if the flow has ports, for `$communityId`.
    Key(FlowKey),
    /// The flow's Community ID, the value for `$communityId`. Does not match later fragments of
    /// TCP, UDP, SCTP, ICMP and ICMPv6.
    CommunityId(String),
}

impl Template {
    /// Parses a template. Whether libpcap accepts the pcap-filter text depends on the link type:
    /// see [`Template::check`].
    ///
    /// # Errors
    /// [`FilterProblem::UnknownVariable`]; an invalid or misplaced own term; a syntax error in a
    /// text with own terms; a text that exceeds a limit.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        check_len(text, EXPRESSION_BYTES_MAX)?;
        let (words, tests) = words_and_tests(text)?;
        let mut variables = Vec::new();
        for word in words.iter().filter(|word| word.kind == WordKind::Dollar) {
            let name = &text[word.span.clone()];
            let variable = Variable::from_name(name).ok_or_else(|| {
                let problem = FilterProblem::UnknownVariable(name.to_owned());
                FilterError::new(problem, text, word.span.clone())
            })?;
            variables.push((word.span.clone(), variable));
        }
        let has_terms =
            !tests.is_empty() || variables.iter().any(|(_, variable)| variable.is_term());
        let (plan, pieces) = if has_terms {
            chain::plan(text, &words, &tests)?
        } else {
            (
                EvaluationPlan::Piece(0),
                std::iter::once(0..text.len()).collect(),
            )
        };
        let pieces = pieces.into_iter();
        let pieces = pieces.map(|bytes| TextPiece { bytes, fixed: None });
        let mut template = Self {
            text: text.into(),
            variables,
            pieces: pieces.collect(),
            numbers: Vec::new(),
            plan: Arc::new(plan),
        };
        for index in 0..template.pieces.len() {
            template.fix(index, None);
        }
        Ok(template)
    }

    /// Replaces names of hosts, ports and protocols by addresses and numbers if the meaning stays
    /// the same. Reads services(5) and protocols(5), and waits for the resolver. A piece that keeps
    /// a name, such as that of a network, can be compiled for further link types only until
    /// [`Template::seal`].
    ///
    /// # Errors
    /// [`FilterProblem::NameAndVariable`] for a piece that contains a variable and a name that is
    /// not replaced: libpcap would look up the name for each trigger. In a piece with a variable,
    /// names of hosts and networks are never replaced.
    pub fn resolve(mut self) -> Result<Self, FilterError> {
        for index in 0..self.pieces.len() {
            let bytes = self.pieces[index].bytes.clone();
            let mut unknown = None;
            for name in names(&self.text, bytes.clone(), true) {
                match name.meaning {
                    NameMeaning::Known(numbers) => self.numbers.extend(numbers),
                    NameMeaning::Unknown => _ = unknown.get_or_insert(name.span),
                }
            }
            if let (Some(name), Some((_, variable))) = (&unknown, self.filled_in(&bytes).first()) {
                let problem = FilterProblem::NameAndVariable {
                    name: self.text[name.clone()].to_owned(),
                    variable: *variable,
                };
                return Err(FilterError::new(problem, &self.text, name.clone()));
            }
            self.fix(index, unknown);
        }
        Ok(self)
    }

    /// Rejects all names. For a text that arrives after names were looked up.
    ///
    /// # Errors
    /// [`FilterProblem::NameTooLate`] for the first name, even a port's.
    pub fn without_names(self) -> Result<Self, FilterError> {
        let first = self.names().next();
        match first {
            Some(name) => Err(name_too_late(&self.text, name.span)),
            None => Ok(self),
        }
    }

    /// Rejects all names except those of ports and protocols: the resolver may ask name servers for
    /// hosts and networks. Ports and protocols are in services(5) and protocols(5), unless
    /// nsswitch.conf(5) names another source.
    ///
    /// # Errors
    /// [`FilterProblem::HostName`] for the first name that is not a port's or a protocol's.
    pub fn without_hosts(self) -> Result<Self, FilterError> {
        let host = self.names().find(|name| !name.is_local);
        let Some(Name { span, .. }) = host else {
            return Ok(self);
        };
        let problem = FilterProblem::HostName(self.text[span.clone()].to_owned());
        Err(FilterError::new(problem, &self.text, span))
    }

    fn names(&self) -> impl Iterator<Item = Name> {
        let pieces = self.pieces.iter();
        pieces.flat_map(|piece| names(&self.text, piece.bytes.clone(), false))
    }

    /// Ends the name look-ups of a template that [`Template::resolve`] returned. The caller must
    /// first compile the template for all known link types.
    pub fn seal(&self) {
        self.fixed().for_each(|piece| piece.seal());
    }

    /// Whether a template that [`Template::resolve`] returned still contains names that libpcap
    /// looks up. `false` for any other template.
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.fixed().any(|piece| piece.name.is_some())
    }

    fn fixed(&self) -> impl Iterator<Item = &Arc<FilterPiece>> {
        self.pieces.iter().filter_map(|piece| piece.fixed.as_ref())
    }

    /// Makes the shared [`FilterPiece`] of a piece without variables. `name` is a name that libpcap
    /// must look up.
    fn fix(&mut self, index: usize, name: Option<Range<usize>>) {
        let bytes = self.pieces[index].bytes.clone();
        if !self.filled_in(&bytes).is_empty() {
            return;
        }
        let mut piece = self.piece(&bytes, |_| String::new());
        piece.name = name;
        self.pieces[index].fixed = Some(Arc::new(piece));
    }

    fn filled_in(&self, bytes: &Range<usize>) -> &[(Range<usize>, Variable)] {
        let within = |at: usize| {
            let is_before = |(span, _): &(Range<usize>, Variable)| span.start < at;
            self.variables.partition_point(is_before)
        };
        &self.variables[within(bytes.start)..within(bytes.end)]
    }

    /// The text that the user typed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Variables in the text, without duplicates, in the order of first use.
    #[must_use]
    pub fn variables(&self) -> Vec<Variable> {
        let mut seen = BTreeSet::new();
        let all = self.variables.iter().map(|(_, variable)| *variable);
        all.filter(|variable| seen.insert(*variable)).collect()
    }

    /// Compiles the pcap-filter text for `link` with sample values, so that mistakes show before
    /// the first trigger. If libpcap rejects IPv4 addresses, tries IPv6 addresses.
    ///
    /// # Errors
    /// [`FilterError`], pointing into the text that the user typed.
    pub fn check(&self, link: LinkContext) -> Result<(), FilterError> {
        let compile = |family: SampleFamily| {
            let sample = |variable: Variable| variable.sample(family).to_owned();
            let mut pieces = self.filled_pieces(&sample);
            pieces.try_for_each(|piece| piece.compile(link).map(drop))
        };
        let has_addresses = self.asks(Variable::SrcIp) || self.asks(Variable::DstIp);
        match compile(SampleFamily::V4) {
            Err(error) if has_addresses => compile(SampleFamily::V6).map_err(|_| error),
            result => result,
        }
    }

    /// Whether [`Self::check`] is quick: see
    /// [`Filter::prepares_quickly`](crate::Filter::prepares_quickly).
    #[must_use]
    pub fn checks_quickly(&self, link: LinkContext) -> bool {
        let sample = |variable: Variable| variable.sample(SampleFamily::V6).to_owned();
        let mut pieces = self.filled_pieces(&sample);
        pieces.all(|piece| piece.compiles_quickly(link))
    }

    /// Compiles the pieces without variables in advance, for all expressions of the template.
    /// Ignores errors, which appear again when such an expression is prepared.
    pub fn prepare(&self, link: LinkContext) {
        self.fixed().for_each(|piece| drop(piece.compile(link)));
    }

    /// Extracts the values that the template needs from a trigger packet. Formats only
    /// `$communityId` of a packet without ports: cheap enough for each packet that triggers.
    ///
    /// # Errors
    /// [`FillError`] for a variable that the packet cannot supply.
    pub fn values(&self, facts: &TriggerFacts) -> Result<TriggerValues, FillError> {
        let mut values = TriggerValues::default();
        for (_, variable) in self.variables.iter().filter(|(_, v)| !v.is_term()) {
            values.texts[*variable as usize] = Some(variable.value(&facts.parsed)?);
        }
        if self.asks(Variable::Flow) {
            values.terms.flow = Some(flow_term(facts)?);
        }
        if self.asks(Variable::Iface) {
            values.terms.interface = Some(facts.interface);
        }
        if self.asks(Variable::CommunityId) {
            values.terms.community = Some(community_term(facts)?);
        }
        Ok(values)
    }

    /// [`Self::values`] and [`Self::filled`] in one step.
    ///
    /// # Errors
    /// Like [`Self::values`].
    pub fn fill(&self, facts: &TriggerFacts) -> Result<FilledExpression, FillError> {
        Ok(self.filled(&self.values(facts)?))
    }

    /// The expression with values from [`Self::values`] of the same template. Missing variables
    /// become empty text.
    #[must_use]
    pub fn filled(&self, values: &TriggerValues) -> FilledExpression {
        let mut display = String::with_capacity(self.text.len());
        let mut copied = 0;
        for (span, variable) in &self.variables {
            display.push_str(&self.text[copied..span.start]);
            display.push_str(&values.text(*variable));
            copied = span.end;
        }
        display.push_str(&self.text[copied..]);
        FilledExpression {
            display,
            plan: Arc::clone(&self.plan),
            pieces: self
                .filled_pieces(&|variable| values.text(variable))
                .collect(),
            terms: values.terms.clone(),
        }
    }

    /// The template as an expression, if it contains no variable.
    ///
    /// # Errors
    /// [`FilterProblem::NeedsTrigger`], pointing at the first variable.
    pub fn into_plain(self) -> Result<FilledExpression, FilterError> {
        self.needs_only(|_| false)?;
        Ok(self.filled(&TriggerValues::default()))
    }

    /// The template as an expression for one interface. `interface` is the ring-wide number.
    ///
    /// # Errors
    /// [`FilterProblem::NeedsTrigger`], pointing at the first variable other than `$iface`.
    pub fn filled_on(&self, interface: u16) -> Result<FilledExpression, FilterError> {
        self.needs_only(|variable| variable == Variable::Iface)?;
        let mut values = TriggerValues::default();
        values.terms.interface = Some(interface).filter(|_| !self.variables.is_empty());
        Ok(self.filled(&values))
    }

    /// The template as an expression for a flow.
    ///
    /// # Errors
    /// [`FilterProblem::NeedsTrigger`], pointing at the first variable without a value.
    pub fn filled_for(&self, flow: &KnownFlow) -> Result<FilledExpression, FilterError> {
        let term = |key: &FlowKey| FlowTerm::Key {
            key: *key,
            trigger: None,
        };
        let terms = match flow {
            KnownFlow::Key(key) => TermValues {
                flow: Some(term(key)),
                community: matches!(key, FlowKey::Ports { .. })
                    .then(|| CommunityTerm::Flow(term(key))),
                ..TermValues::default()
            },
            KnownFlow::CommunityId(id) => TermValues {
                community: Some(CommunityTerm::Id(id.clone())),
                ..TermValues::default()
            },
        };
        self.needs_only(|variable| match variable {
            Variable::Flow => terms.flow.is_some(),
            Variable::CommunityId => terms.community.is_some(),
            _ => false,
        })?;
        // Drops values that the text does not use. Otherwise the filter would follow fragments of a
        // flow that its text does not contain.
        let terms = TermValues {
            flow: terms.flow.filter(|_| self.asks(Variable::Flow)),
            community: terms.community.filter(|_| self.asks(Variable::CommunityId)),
            ..terms
        };
        let texts = <[Option<VariableValue>; Variable::TEXTS]>::default();
        Ok(self.filled(&TriggerValues { texts, terms }))
    }

    fn asks(&self, variable: Variable) -> bool {
        self.variables.iter().any(|(_, its)| *its == variable)
    }

    fn needs_only(&self, is_known: impl Fn(Variable) -> bool) -> Result<(), FilterError> {
        let mut variables = self.variables.iter();
        let Some((span, unknown)) = variables.find(|(_, variable)| !is_known(*variable)) else {
            return Ok(());
        };
        let problem = FilterProblem::NeedsTrigger(*unknown);
        Err(FilterError::new(problem, &self.text, span.clone()))
    }

    fn filled_pieces(
        &self,
        value: &impl Fn(Variable) -> String,
    ) -> impl Iterator<Item = Arc<FilterPiece>> {
        self.pieces.iter().map(move |TextPiece { bytes, fixed }| {
            let filled = || Arc::new(self.piece(bytes, value));
            fixed.clone().unwrap_or_else(filled)
        })
    }

    fn piece(&self, bytes: &Range<usize>, value: impl Fn(Variable) -> String) -> FilterPiece {
        let numbers = self.numbers.iter();
        let numbers = numbers
            .filter(|(span, _)| bytes.contains(&span.start))
            .cloned();
        let values = self.filled_in(bytes).iter();
        let values = values.map(|(span, variable)| (span.clone(), value(*variable)));
        let mut all: Vec<_> = numbers.chain(values).collect();
        all.sort_by_key(|(span, _)| span.start);
        let mut piece = FilterPiece::of(Arc::clone(&self.text));
        let mut copied = bytes.start;
        for (span, text) in all {
            piece.push(copied..span.start, None);
            copied = span.end;
            piece.push(span, Some(&text));
        }
        piece.push(copied..bytes.end, None);
        piece
    }
}

impl TriggerValues {
    /// The text that replaces a variable. For an own term, the form that [`FilledExpression`]
    /// shows.
    fn text(&self, variable: Variable) -> String {
        let TermValues {
            flow,
            interface,
            community,
        } = &self.terms;
        let text = match variable {
            Variable::Flow => flow.map(|flow| format!("$flow[{flow}]")),
            Variable::Iface => interface.map(|interface| format!("$iface[{interface}]")),
            Variable::CommunityId => community
                .as_ref()
                .map(|term| format!("$communityId[{term}]")),
            _ => self.texts[variable as usize].map(|value| value.to_string()),
        };
        text.unwrap_or_default()
    }
}

impl TriggerFacts {
    /// The packet's flow, or for a later fragment the flow of its datagram's first fragment.
    fn flow(&self) -> Option<FlowKey> {
        let is_later = self.parsed.is_later_fragment();
        let first_fragment = self.first_fragment.filter(|_| is_later);
        flow_of(&self.parsed).or(first_fragment)
    }
}

fn flow_term(facts: &TriggerFacts) -> Result<FlowTerm, FillError> {
    let trigger = fragment_of(&facts.parsed);
    let flow = facts.flow().map(|key| FlowTerm::Key { key, trigger });
    flow.or(trigger.map(FlowTerm::Datagram)).ok_or(FillError {
        variable: Variable::Flow,
        reason: "the trigger packet's headers do not tell its flow",
    })
}

fn community_term(facts: &TriggerFacts) -> Result<CommunityTerm, FillError> {
    let flow = facts.flow();
    if let Some(key @ FlowKey::Ports { .. }) = flow {
        return Ok(CommunityTerm::Flow(FlowTerm::Key {
            key,
            trigger: fragment_of(&facts.parsed),
        }));
    }
    let id = community_id(&facts.parsed, 0).or_else(|| community_id_of(&flow?, 0));
    id.map(CommunityTerm::Id).ok_or(FillError {
        variable: Variable::CommunityId,
        reason: "the trigger packet has no Community ID",
    })
}
