"""Codes of rejections: what each costs its sender, and its texts.

The metric's labels, the log lines, the answers to senders and the documentation all follow from this one table. A
rejection changes only its counter and, if an honest peer could not have caused it, the sender's reputation
(`reputation.py`). Nothing is decided here: the check that finds something wrong names the code.

Light on purpose: metrics, documentation and the command line read this table without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: h harmless: an honest peer can cause it under faults; it costs nothing.
#: s suspicious: ten in a minute pause the edge.
#: x: closes the edge at once.
#: o operational: a problem of our own machine; nobody is rejected.
Kind = Literal["h", "s", "x", "o"]


@dataclass(frozen=True, slots=True)
class RejectionCode:
    """One row of the table.

    code     in snake case
    ids      inputs that cause it: ids of the table of bad inputs
    kind     what it costs the sender
    log      what is wrong, for the rejecting peer's log; sender and place are put before it
    advice   what to do: for the sender or, with kind o, for the person at this machine
    """

    code: str
    ids: tuple[str, ...]
    kind: Kind
    log: str
    advice: str


_BROKEN = "Your message is not what this version of fedpeer writes; check that both run the same release."

_ROWS = (
    # ------------------------------------------------------------------------------------------------ who, how much
    RejectionCode(
        "tls_refused",
        ("T01",),
        "s",
        "the TLS handshake failed",
        "Speak TLS 1.3 with the certificate that this federation's authority gave you, and check that it has not "
        "expired and that your clock is right.",
    ),
    RejectionCode(
        "handshake_cut",
        ("T11",),
        "h",
        "the connection ended, or stood still, in the middle of the TLS handshake",
        "The connection was cut while you were connecting; connect again.",
    ),
    RejectionCode(
        "unknown_peer",
        ("T02", "R03"),
        "s",
        "names a peer that is not in the roster",
        "You, or the peer you speak about, is not in my roster: ask whoever holds the authority's key for an "
        "invitation, or wait until I have the newest roster.",
    ),
    RejectionCode(
        "sender_mismatch",
        ("T03",),
        "x",
        "signs as one peer and speaks in the name of another",
        "The sender in your message is not the owner of your certificate: each peer needs its own id, key and folder.",
    ),
    RejectionCode(
        "body_too_large",
        ("T04", "T05"),
        "s",
        "the body is longer than anything we could share",
        "Your message is larger than the largest group we share; compare the two federation files.",
    ),
    RejectionCode(
        "body_truncated",
        ("T06",),
        "h",
        "the body ended early",
        "The connection was cut in the middle of your message; it will be taken when it is repeated.",
    ),
    RejectionCode(
        "body_too_slow",
        ("T07",),
        "s",
        "the body came slower than the floor rate",
        "Your message came too slowly to hold a buffer for it; send less over this link (`gossip.wire: int8`).",
    ),
    RejectionCode(
        "too_many_requests",
        ("T08",),
        "h",
        "more requests than one peer may have",
        "Slow down: I take a bounded number of messages at once and a second; repeat this one later.",
    ),
    RejectionCode(
        "unknown_route",
        ("T09", "T10"),
        "s",
        "asked for a path, method, content type or encoding that there is not",
        "Peers speak by POST to /v1/message, with Content-Type application/octet-stream and no Content-Encoding or "
        "Expect header; pages for people are on the dashboard's own listener.",
    ),
    # ------------------------------------------------------------------------------------------------------ envelope
    RejectionCode("not_fedpeer", ("E01",), "s", "the first bytes are not those of a fedpeer message", _BROKEN),
    RejectionCode(
        "version_unsupported",
        ("E02",),
        "h",
        "a wire version that this release does not speak",
        "We speak different versions of the wire; bring the older of the two peers up to the newer release.",
    ),
    RejectionCode("header_truncated", ("E03",), "s", "the message is shorter than its header says", _BROKEN),
    RejectionCode("metadata_too_large", ("E04",), "s", "more metadata declared than a message may have", _BROKEN),
    RejectionCode(
        "tail_length_wrong",
        ("E05",),
        "s",
        "the number of tensor bytes is not the group's",
        "The tensor you sent is longer or shorter than your own message says; both sides must cut the group alike: "
        "compare the two federation files.",
    ),
    RejectionCode("trailing_bytes", ("E06",), "s", "bytes after the end of the message", _BROKEN),
    RejectionCode(
        "bad_signature",
        ("E07",),
        "x",
        "a statement whose signature is not its author's",
        "A statement you passed on is not signed by its author; you should have refused it yourself.",
    ),
    RejectionCode(
        "wrong_recipient",
        ("E08",),
        "s",
        "meant for another peer",
        "Your message names another recipient: check that the address in the roster belongs to the peer you want.",
    ),
    RejectionCode(
        "wrong_federation",
        ("E09",),
        "h",
        "from another federation",
        "We do not belong to the same federation; take this federation's files and start again.",
    ),
    RejectionCode(
        "repeated",
        ("E10",),
        "h",
        "a transfer that was taken before; acknowledged again",
        "This transfer is taken already; nothing is to be done.",
    ),
    RejectionCode(
        "sequence_jump",
        ("E11",),
        "s",
        "a number further ahead than the window",
        "Transfers are numbered one by one and at most two are under way; greet me to compare the channels.",
    ),
    RejectionCode(
        "stale_incarnation",
        ("E12", "R02"),
        "h",
        "from or to an incarnation that is gone",
        "One of us lost its memory and came back as a new incarnation; greet me, then go on from there.",
    ),
    RejectionCode(
        "incarnation_jump",
        ("E13",),
        "s",
        "an incarnation that leaps ahead",
        "Your incarnation leapt further than losing memory explains; start again from your newest snapshot.",
    ),
    RejectionCode(
        "own_message",
        ("E14",),
        "s",
        "our own message, sent back to us",
        "You sent my own message back to me; check that there is no proxy between us.",
    ),
    RejectionCode(
        "duplicate_peer",
        ("E15",),
        "o",
        "two living processes with one identity; the later one goes on",
        "This peer was started a second time: the later process goes on, this one stops. Keep one of the two.",
    ),
    RejectionCode(
        "unproven",
        ("E17",),
        "h",
        "tells us of ourselves what only our own signature could show",
        "You say that I lived, made or took more than I remember: show me what I signed, and I believe it.",
    ),
    RejectionCode(
        "foreign_roster",
        ("E16",),
        "s",
        "a roster that another authority signed",
        "The roster you passed on is by another authority; you should have refused it yourself.",
    ),
    # ------------------------------------------------------------------------------------------------------ metadata
    RejectionCode(
        "bad_metadata", ("M01", "M02", "M03", "M04", "M05", "M06"), "s", "metadata that cannot be read", _BROKEN
    ),
    RejectionCode("unknown_kind", ("M07",), "s", "an unknown kind of message", _BROKEN),
    RejectionCode("field_out_of_range", ("M08",), "s", "a number out of its range", _BROKEN),
    RejectionCode(
        "internal_error",
        ("M09",),
        "s",
        "our own program failed on it; nothing of it was taken",
        "My own program failed on your message, and nothing of it was taken; look at my log, and report it.",
    ),
    # ------------------------------------------------------------------------------------------------ groups, numbers
    RejectionCode(
        "unknown_group",
        ("S01",),
        "s",
        "an averaging group that nobody here knows",
        "I know no such averaging group; compare the partial models in the two federation files.",
    ),
    RejectionCode(
        "group_not_shared",
        ("S02",),
        "s",
        "an averaging group in which not both of us are",
        "Not both of us implement the partial models of this group; compare `members` in the two federation files.",
    ),
    RejectionCode(
        "plan_mismatch",
        ("S03",),
        "h",
        "cuts the group in another way",
        "Our networks or partial models differ, so this group is not averaged between us; the log names the first "
        "difference.",
    ),
    RejectionCode(
        "wrong_shape",
        ("S04",),
        "s",
        "a tensor of another shape than the group's",
        "A group travels as one vector of the group's length; compare the two federation files.",
    ),
    RejectionCode(
        "wrong_dtype",
        ("S05",),
        "s",
        "a form of numbers that this group does not use",
        "Use the form that `gossip.wire` of the federation file names; all of them are little-endian.",
    ),
    RejectionCode(
        "not_finite",
        ("S06",),
        "s",
        "numbers among which are NaN or infinity",
        "Your values contain NaN or infinity: your training has diverged; lower its learning rate.",
    ),
    RejectionCode(
        "bad_weight",
        ("S07", "S15"),
        "s",
        "a push-sum weight that nobody can have",
        "A push-sum weight is finite, above 0 and at most the sum of all members'; what you gave, less what you were "
        "given, is at most what the others put in. Compare `learning.weights`.",
    ),
    RejectionCode(
        "no_room",
        ("S16",),
        "h",
        "more weight than this peer may hold",
        "I hold as much weight as may be in one place, and give it on; repeat this share later.",
    ),
    RejectionCode(
        "sequence_reused",
        ("S08",),
        "h",
        "other bytes under a number that was taken; the channel is opened anew",
        "One of us lost its memory: the channel is opened anew and the difference is written off.",
    ),
    RejectionCode(
        "early",
        ("S14",),
        "h",
        "a number beyond the next one",
        "The transfer before this one is still under way; repeat both.",
    ),
    RejectionCode(
        "implausible",
        ("S09",),
        "s",
        "finite, but absurdly far from our estimate",
        "Your value is further away than anything that training can explain; look for a diverged training or data that "
        "is not normalised.",
    ),
    RejectionCode(
        "out_of_reach",
        ("S17",),
        "h",
        "further from our estimate, or longer, than our own training explains",
        "Your value is further from mine than a hundred times what I have trained; look for a diverged training, yours "
        "or of somebody who gave to you.",
    ),
    RejectionCode(
        "stale_epoch", ("S10",), "h", "of an averaging that is over", "This averaging is over; go on to the next."
    ),
    RejectionCode(
        "epoch_too_early",
        ("S11",),
        "s",
        "of an averaging that is not due",
        "You are further ahead than the rules of the federation allow; wait for the others.",
    ),
    RejectionCode(
        "not_a_neighbour",
        ("S12",),
        "h",
        "a peer, but not a neighbour in this group",
        "You are not my neighbour in this group; we see different peers alive, which settles by itself.",
    ),
    # ---------------------------------------------------------------------------------------------------- membership
    RejectionCode(
        "refuted",
        ("R01",),
        "h",
        "told that we are suspect or dead; answered by a newer statement",
        "I am alive: take my newer statement.",
    ),
    RejectionCode(
        "false_accuser",
        ("R18",),
        "h",
        "a verdict by a member whose verdicts were refuted again and again lately",
        "Its author said of living peers too often that they are suspect or dead: look at its network; its verdicts "
        "count again after a while.",
    ),
    # ------------------------------------------------------------------------------------------- coordinated rounds
    RejectionCode(
        "double_vote",
        ("R04",),
        "s",
        "votes for two candidates in one term",
        "You voted for two candidates in one term: look for a second machine with your identity, or for a disk that "
        "was put back to an earlier state.",
    ),
    RejectionCode(
        "two_coordinators",
        ("R05",),
        "x",
        "coordinates in a term that is another's",
        "Another peer coordinates in this term, so somebody voted twice: neither of you is followed, and the next term "
        "decides.",
    ),
    RejectionCode(
        "stale_term",
        ("R06",),
        "h",
        "of a term that is over",
        "There is a later term: step down, and follow whoever coordinates in it.",
    ),
    RejectionCode(
        "term_jump",
        ("R07",),
        "s",
        "a term that leaps ahead",
        "Your term leapt further than elections explain; start again from your newest snapshot.",
    ),
    RejectionCode(
        "too_many_terms",
        ("R19",),
        "h",
        "stands in one term after the other, and nobody gets anything done",
        "You were a candidate again and again while no round was committed; your vote request raises no term until "
        "others have had their turn.",
    ),
    RejectionCode(
        "already_applied",
        ("R08",),
        "h",
        "a proposal for a round that is applied",
        "This round is applied already: take its certificate from me, and go on from there.",
    ),
    RejectionCode(
        "round_gap",
        ("R09",),
        "h",
        "of a round or a roster that we have not come to",
        "I am behind you: hand me the newest roster, certificate and model.",
    ),
    RejectionCode(
        "digest_mismatch",
        ("R10",),
        "s",
        "another model than the one decided, or bytes that are not those of their digest",
        "Your digest is not that of the bytes you sent, or not that of the model which was accepted for this round.",
    ),
    RejectionCode(
        "round_closed",
        ("R11",),
        "h",
        "an update for a round that is over",
        "This round ended without your update; go on with the next one. If that happens often, raise "
        "`gossip.deadline`.",
    ),
    RejectionCode(
        "second_update",
        ("R12",),
        "s",
        "a second, different update in one round",
        "Your first update counts for this round; repeat that one, or wait for the next round.",
    ),
    RejectionCode(
        "bad_sample_count",
        ("R13",),
        "s",
        "a number of examples that nobody can have",
        "The number of examples in your update is no whole number that a machine can hold; check what you train on.",
    ),
    RejectionCode(
        "bad_precision",
        ("R14",),
        "s",
        "a variance or precision that is not above 0",
        "The variances and precisions in your update have to be above 0 and finite: your training has diverged; lower "
        "its learning rate.",
    ),
    RejectionCode(
        "bad_task_matrix",
        ("R15",),
        "s",
        "a coupling of tasks that is not symmetric or not positive semi-definite",
        "The model that you hand over says how tasks are related by numbers that cannot be so; look for a coordinator "
        "that lies, or another version of fedpeer.",
    ),
    RejectionCode(
        "too_far",
        ("R16",),
        "h",
        "an update that moved much further than the others of its round",
        "Your update moved further than learning.farthest times the median one of its round, and is left out of it; "
        "look for a diverged training, or raise learning.farthest.",
    ),
    RejectionCode(
        "wrong_client",
        ("R17",),
        "s",
        "an update in another client's name",
        "Your update says to be another client's. Run one version of fedpeer on all machines, and the same roster.",
    ),
    # -------------------------------------------------------------------------------------------- our own machine's
    RejectionCode(
        "snapshot_corrupt",
        ("D01",),
        "o",
        "the newest snapshot cannot be read; the one before is used",
        "The newest snapshot on this disk is damaged; the peer goes on from the one before. Check the disk.",
    ),
    RejectionCode(
        "journal_corrupt",
        ("D01",),
        "o",
        "an entry of the journal cannot be read; what follows it is lost",
        "The journal on this disk is damaged; the peer goes on from the last good entry. Check the disk.",
    ),
    RejectionCode(
        "persist_failed",
        ("D03", "D06"),
        "o",
        "nothing could be saved; nothing is sent until a save succeeds",
        "This peer cannot save and therefore says nothing; free some space on its disk or make it writable.",
    ),
    RejectionCode(
        "not_listening",
        ("D04",),
        "o",
        "this machine has not got the address to listen on",
        "This peer waits for the address of its `listen`, or of its dashboard: bring up the interface, or change it.",
    ),
    RejectionCode(
        "out_of_handles",
        ("D04",),
        "o",
        "no file handles are left",
        "This process may open no more files or connections; raise its limit (ulimit -n).",
    ),
)

#: All codes, in the order of the table of bad inputs.
REJECTIONS = {row.code: row for row in _ROWS}
