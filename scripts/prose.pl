#!/usr/bin/env perl
# Finds sentences that need a second reading, in Markdown and in comments of Rust. CONTRIBUTING.md has the rules.
#
#   scripts/prose.pl              findings per 1,000 words of each crate and page; exit 1 above the limits (scripts/lint.sh)
#   scripts/prose.pl FILE...      each finding of these files
#   scripts/prose.pl --since REV  each finding in lines that were added since REV; exit 1 above the limit

use strict;
use warnings;

binmode STDOUT, ':encoding(UTF-8)';

# Findings per 1,000 words: of everything, and of a crate or page.
my ($LIMIT, $LIMIT_PART) = (5, 8);
my ($WORDS, $COLUMNS) = (30, 100);

my @RULES = (
    ['pronoun at the start', qr/^(?:What|Who|Whoever|Those|Such|None|Else|So (?:is|are|does|do|it))\b/],
    ['pronoun at the end',   qr/\b(?:none|there|so|it|them|those|one|others|both)[.]$/],
    ['who asks',             qr/\bwhoever\b|\b(?:by|for|to|from|with) who\b/],
    ['so many',              qr/\bso (?:many|much|long|often|far)\b(?! as)/],
    ['but for',              qr/\bbut for\b|\bin (?:the )?place of\b|\bof (?:its|their|our) own\b/],
    ['told',                 qr/\b(?:is|are|was|were|be|been|not) told\b|\btells? of\b/],
    ['looked at',            qr/\blook(?:s|ed|ing)? at\b/],
    ['behind',               qr/\bbehind\b(?! (?:a |the )?(?:proxy|firewall|NAT|switch|load balancer))/],
    ['see the module',       qr/\bSee the module\b|^The same\b/],
);

my $since;
if (@ARGV && $ARGV[0] eq '--since') {
    (undef, $since) = splice @ARGV, 0, 2;
    die "prose: --since takes a revision\n" unless defined $since;
}
my %added;
if (defined $since) {
    my $file;
    open my $diff, '-|', 'git', 'diff', '-U0', $since, '--', '*.rs', '*.md' or die "prose: git: $!\n";
    while (<$diff>) {
        $file = $1 if m{^\+\+\+ b/(.*)};
        next unless /^@@ \S+ \+(\d+)(?:,(\d+))? @@/;
        $added{$file}{$_} = 1 for $1 .. $1 + ($2 // 1) - 1;
    }
    close $diff or die "prose: git diff failed\n";
}

# Paragraphs and cells with the line where each begins.
sub paragraphs {
    my ($file, $lines, $wanted) = @_;
    my ($rust, $code, $start, @run, @all) = ($file =~ /\.rs$/, 0, 0);
    my $end = sub { push @all, [$start, join ' ', @run] if @run; @run = () };
    for my $number (1 .. @$lines) {
        my $text = $lines->[$number - 1];
        $text =~ s/^\s+|\s+$//g;
        if ($rust && $text !~ s{^//[/!]?\s?}{}) { $code = 0; $end->(); next }
        if ($text =~ /^(?:```|~~~)/) { $code = !$code; $end->(); next }
        if ($code || $text eq '' || $text =~ /^(?:#|<|!\[|SAFETY)/) { $end->(); next }
        if ($wanted && !$wanted->{$number}) { $end->(); next }
        if ($text =~ /^\|/) {
            $end->();
            push @all, map { [$number, $_] } grep { split(' ') > 3 } split /\|/, $text unless $rust;
            next;
        }
        $end->() if $text =~ s/^(?:[-*>]|\d+\.)\s+//;
        $start = $number unless @run;
        push @run, $text;
    }
    $end->();
    return @all;
}

sub findings {
    my ($file, $lines, $wanted) = @_;
    my ($words, @found) = (0);
    for my $paragraph (paragraphs($file, $lines, $wanted)) {
        my ($number, $text) = @$paragraph;
        $words += () = $text =~ /\S+/g;
        $text =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;
        $text =~ s/`[^`]*`/CODE/g;
        for my $sentence (split /(?<=[.!?])\s+(?=[A-Z`(])/, $text) {
            $sentence =~ s/^\s+|\s+$//g;
            my $count = () = $sentence =~ /\S+/g;
            push @found, [$number, "$count words", $sentence] if $count > $WORDS;
            push @found, map { [$number, $_->[0], $sentence] } grep { $sentence =~ $_->[1] } @RULES;
        }
    }
    for my $number (1 .. ($file =~ /\.rs$/ ? @$lines : 0)) {
        next if $wanted && !$wanted->{$number};
        my $line = $lines->[$number - 1];
        push @found, [$number, "over $COLUMNS columns", $line]
            if length $line > $COLUMNS && $line =~ m{^\s*//} && substr($line, $COLUMNS / 2) =~ / /;
    }
    return ($words, @found);
}

my @files = @ARGV ? @ARGV : defined $since ? sort keys %added : split /\n/, `git ls-files '*.rs' '*.md'`;
my (%words, %found);
for my $file (@files) {
    open my $in, '<:encoding(UTF-8)', $file or next;
    chomp(my @lines = <$in>);
    my ($words, @found) = findings($file, \@lines, defined $since ? $added{$file} : undef);
    my $part = $file =~ m{^(crates/[^/]+)/.*\.rs$} ? $1 : $file =~ m{^([^/]+)/.*\.rs$} ? $1 : $file;
    $words{$part} += $words;
    $found{$part} += @found;
    next unless @ARGV || defined $since;
    printf "%s:%d: %s: %.160s\n", $file, @$_ for @found;
}
my ($words, $found, $failed) = (0, 0, 0);
for my $part (sort keys %words) {
    ($words, $found) = ($words + $words{$part}, $found + $found{$part});
    my $rate = $words{$part} ? 1000 * $found{$part} / $words{$part} : 0;
    # A short page may have three.
    next if $rate <= $LIMIT_PART || $found{$part} <= 3;
    $failed = 1 unless @ARGV || defined $since;
    printf "prose: %s: %.1f findings per 1,000 words, %d are the limit\n", $part, $rate, $LIMIT_PART;
}
die "prose: no text was found\n" unless $words || defined $since;
my $rate = $words ? 1000 * $found / $words : 0;
$failed = 1 if $rate > $LIMIT && !@ARGV;
printf "prose: %d findings in %d words: %.1f per 1,000, %d are the limit\n", $found, $words, $rate, $LIMIT;
exit $failed;
