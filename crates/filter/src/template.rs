//! Expressions with variables that a trigger packet fills in.

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

/// An expression with variables: pcap-filter(7) text in which [`Variable`]s may stand.
///
/// `$srcIP` and its like stand for pcap-filter text. `$flow`, `$iface`, `$communityId` and the payload terms (`payload
/// contains "…"`, `payload startswith "…"`, `payload matches /…/`) are terms of our own, joined to pcap-filter text by
/// `and or not ( )`. Without such terms libpcap sees the whole text as it is. With them, each
/// maximal piece of pcap-filter text is compiled by itself: what `vlan` or `mpls` do to the offsets of what follows
/// them, and a load beyond the captured bytes, reach to the end of the piece and no further; a primitive that leaves
/// out its qualifiers (`port 80 or 443`) takes them from its own piece.
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
    /// Every variable with its bytes in `text`, in order.
    variables: Vec<(Range<usize>, Variable)>,
    /// Each piece of pcap-filter text, in order.
    pieces: Vec<TextPiece>,
    /// What [`Template::resolve`] writes in the place of names, in order.
    numbers: Vec<(Range<usize>, String)>,
    /// How its terms of our own and its pieces are evaluated.
    pub(crate) plan: Arc<EvaluationPlan>,
}

/// A piece of pcap-filter text.
#[derive(Debug, Clone)]
struct TextPiece {
    /// Its bytes.
    bytes: Range<usize>,
    /// The piece, where there is nothing to fill in: all that is made of the template shares it, and what libpcap made of it.
    fixed: Option<Arc<FilterPiece>>,
}

impl PartialEq for Template {
    /// Two are equal if their texts are: all else is made of them.
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Template {}

/// The trigger packet, as far as variables ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TriggerFacts {
    /// Its headers.
    pub parsed: Parsed,
    /// The ring-wide number of its interface.
    pub interface: u16,
    /// For a later fragment, which tells no ports: the flow of the first fragment of its datagram, where that is known.
    /// `$flow` and `$communityId` are filled in with it, as by any other packet of that flow.
    pub first_fragment: Option<FlowKey>,
}

/// What a template asks of a trigger packet: the values of its variables and terms, small and without text.
///
/// Of one template two are equal if it says the same with them: all packets of a flow, in both directions, have the same value
/// for `$flow`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TriggerValues {
    /// Values that stand for pcap-filter text, by their variables.
    texts: [Option<VariableValue>; Variable::TEXTS],
    /// Values of the terms of our own.
    terms: TermValues,
}

/// A flow that is known otherwise than by a packet of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KnownFlow {
    /// By its key: `$flow` and, where it has ports, `$communityId` can be filled in.
    Key(FlowKey),
    /// By its Community ID, which `$communityId` is filled in with. Later fragments have none.
    CommunityId(String),
}

impl Template {
    /// Parses a template. Whether libpcap takes its pcap-filter text depends on the link type: see
    /// [`Template::check`].
    ///
    /// # Errors
    /// [`FilterProblem::UnknownVariable`]; a payload term that is none; a term of our own in the wrong place; a text that is
    /// too long, or has too many such terms.
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

    /// Looks up the names of hosts, ports and protocols, and finds those of networks and the like, so that the system is not asked for
    /// them again: a piece that holds a name without a number is compiled for further link types only until [`Template::seal`].
    /// Asks the system's tables (services(5), protocols(5)), and waits for its resolver.
    ///
    /// # Errors
    /// [`FilterProblem::NameAndVariable`] for a piece that holds a name of a host or network beside a variable: it would have to be looked
    /// up for each trigger.
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

    /// Makes sure that the system is asked for no name, for a text that comes up when names were looked up already.
    ///
    /// # Errors
    /// [`FilterProblem::NameTooLate`] for the first name, that of a port too.
    pub fn without_names(self) -> Result<Self, FilterError> {
        let first = self.names().next();
        match first {
            Some(name) => Err(name_too_late(&self.text, name.span)),
            None => Ok(self),
        }
    }

    /// Refuses names of hosts and networks, which the resolver asks name servers for. Names of ports
    /// and protocols pass: the system finds these in its own files, services(5) and protocols(5),
    /// unless nsswitch.conf(5) names another source.
    ///
    /// # Errors
    /// [`FilterProblem::HostName`] for the first name of a host or network.
    pub fn without_hosts(self) -> Result<Self, FilterError> {
        let host = self.names().find(|name| !name.is_local);
        let Some(Name { span, .. }) = host else {
            return Ok(self);
        };
        let problem = FilterProblem::HostName(self.text[span.clone()].to_owned());
        Err(FilterError::new(problem, &self.text, span))
    }

    /// The names in its pieces. Looks up no name.
    fn names(&self) -> impl Iterator<Item = Name> {
        let pieces = self.pieces.iter();
        pieces.flat_map(|piece| names(&self.text, piece.bytes.clone(), false))
    }

    /// From now on the system is asked for no name: see [`Template::resolve`]. To be called when it is compiled for all link types that
    /// are known.
    pub fn seal(&self) {
        self.fixed().for_each(|piece| piece.seal());
    }

    /// Whether it holds names that the system is asked for when it is compiled.
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.fixed().any(|piece| piece.name.is_some())
    }

    /// Pieces in which nothing is filled in.
    fn fixed(&self) -> impl Iterator<Item = &Arc<FilterPiece>> {
        self.pieces.iter().filter_map(|piece| piece.fixed.as_ref())
    }

    /// Makes a piece in which nothing is filled in, with a `name` or none.
    fn fix(&mut self, index: usize, name: Option<Range<usize>>) {
        let bytes = self.pieces[index].bytes.clone();
        if !self.filled_in(&bytes).is_empty() {
            return;
        }
        let mut piece = self.piece(&bytes, |_| String::new());
        piece.name = name;
        self.pieces[index].fixed = Some(Arc::new(piece));
    }

    /// The variables in these bytes.
    fn filled_in(&self, bytes: &Range<usize>) -> &[(Range<usize>, Variable)] {
        let within = |at: usize| {
            let is_before = |(span, _): &(Range<usize>, Variable)| span.start < at;
            self.variables.partition_point(is_before)
        };
        &self.variables[within(bytes.start)..within(bytes.end)]
    }

    /// The text as it was typed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The variables and terms about the trigger packet that it holds, each once, in the order of their first places.
    #[must_use]
    pub fn variables(&self) -> Vec<Variable> {
        let mut seen = BTreeSet::new();
        let all = self.variables.iter().map(|(_, variable)| *variable);
        all.filter(|variable| seen.insert(*variable)).collect()
    }

    /// Compiles the pcap-filter text for `link` with sample values, so that a template that can never work is refused
    /// before the first trigger. Addresses are tried as IPv4, then as IPv6.
    ///
    /// # Errors
    /// [`FilterError`], pointing into the text as it was typed.
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

    /// Whether [`Self::check`] is done within a millisecond, as [`Filter::prepares_at_once`](crate::Filter::prepares_at_once) has it.
    #[must_use]
    pub fn checks_at_once(&self, link: LinkContext) -> bool {
        let sample = |variable: Variable| variable.sample(SampleFamily::V6).to_owned();
        let mut pieces = self.filled_pieces(&sample);
        pieces.all(|piece| piece.compiles_at_once(link))
    }

    /// Compiles the pieces in which nothing is filled in, so that expressions made of it need not. What is refused is so again when such an
    /// expression is prepared.
    pub fn prepare(&self, link: LinkContext) {
        self.fixed().for_each(|piece| drop(piece.compile(link)));
    }

    /// What it asks of a trigger packet. Formats nothing: cheap enough for each packet that triggers.
    ///
    /// # Errors
    /// [`FillError`] for a variable that the packet cannot supply: the first one, or else the first term of our own.
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

    /// Fills in a trigger packet's values: [`Self::values`] and [`Self::filled`] in one.
    ///
    /// # Errors
    /// As [`Self::values`].
    pub fn fill(&self, facts: &TriggerFacts) -> Result<FilledExpression, FillError> {
        Ok(self.filled(&self.values(facts)?))
    }

    /// The expression with the values that [`Self::values`] of the same template gave. With values of another template,
    /// variables that it did not ask for become empty text.
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

    /// The template as an expression, if it asks for nothing of a trigger packet.
    ///
    /// # Errors
    /// [`FilterProblem::NeedsTrigger`], pointing at the first variable.
    pub fn into_plain(self) -> Result<FilledExpression, FilterError> {
        self.needs_only(|_| false)?;
        Ok(self.filled(&TriggerValues::default()))
    }

    /// The template as an expression about packets of the interface of this ring-wide number, if it asks for nothing else of a trigger packet.
    ///
    /// # Errors
    /// [`FilterProblem::NeedsTrigger`], pointing at the first variable but `$iface`.
    pub fn filled_on(&self, interface: u16) -> Result<FilledExpression, FilterError> {
        self.needs_only(|variable| variable == Variable::Iface)?;
        let mut values = TriggerValues::default();
        values.terms.interface = Some(interface).filter(|_| !self.variables.is_empty());
        Ok(self.filled(&values))
    }

    /// The template as an expression about a flow, if it asks for nothing else of a trigger packet.
    ///
    /// # Errors
    /// [`FilterProblem::NeedsTrigger`], pointing at the first variable that the flow does not tell.
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
        // A term that the text does not contain would tell expressions apart that say the same.
        let terms = TermValues {
            flow: terms.flow.filter(|_| self.asks(Variable::Flow)),
            community: terms.community.filter(|_| self.asks(Variable::CommunityId)),
            ..terms
        };
        let texts = <[Option<VariableValue>; Variable::TEXTS]>::default();
        Ok(self.filled(&TriggerValues { texts, terms }))
    }

    /// Whether the text contains a variable.
    fn asks(&self, variable: Variable) -> bool {
        self.variables.iter().any(|(_, its)| *its == variable)
    }

    /// Fails with [`FilterProblem::NeedsTrigger`] at the first variable that is not known.
    fn needs_only(&self, is_known: impl Fn(Variable) -> bool) -> Result<(), FilterError> {
        let mut variables = self.variables.iter();
        let Some((span, unknown)) = variables.find(|(_, variable)| !is_known(*variable)) else {
            return Ok(());
        };
        let problem = FilterProblem::NeedsTrigger(*unknown);
        Err(FilterError::new(problem, &self.text, span.clone()))
    }

    /// The pieces of text with `value` in the place of each variable.
    fn filled_pieces(
        &self,
        value: &impl Fn(Variable) -> String,
    ) -> impl Iterator<Item = Arc<FilterPiece>> {
        self.pieces.iter().map(move |TextPiece { bytes, fixed }| {
            let filled = || Arc::new(self.piece(bytes, value));
            fixed.clone().unwrap_or_else(filled)
        })
    }

    /// One piece of text with `value` in the place of each variable.
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
    /// The pcap-filter text that stands for a variable; a term of our own with its value, as [`FilledExpression`] shows it.
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
    /// The flow of the packet, as it tells itself or by its first fragment.
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
