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
_Kind = Literal["h", "s", "x", "o"]


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
    kind: _Kind
    log: str
    advice: str


_BROKEN = "Your message is not what this version of fedpeer writes; check that both peers run the same release."

_ROWS = (
    # ------------------------------------------------------------------------------------------------ who, how much
    RejectionCode(
        "tls_refused",
        ("T01",),
        "s",
        "the TLS handshake failed",
        "Use TLS 1.3 with the certificate from this federation's authority; check that it has not expired and that "
        "your clock is right.",
    ),
    RejectionCode(
        "handshake_cut",
        ("T11",),
        "h",
        "the connection ended or stalled during the TLS handshake",
        "The connection was cut during the handshake; connect again.",
    ),
    RejectionCode(
        "unknown_peer",
        ("T02", "R03"),
        "s",
        "names a peer that is not in the roster",
        "You, or the peer that your message names, are not in the recipient's roster: ask the owner of the "
        "authority's key for an invitation, or wait until the recipient has the newest roster.",
    ),
    RejectionCode(
        "sender_mismatch",
        ("T03",),
        "x",
        "names another sender than the certificate does",
        "The sender in your message is not the owner of your certificate: each peer needs its own id, key and folder.",
    ),
    RejectionCode(
        "body_too_large",
        ("T04", "T05"),
        "s",
        "the body is longer than any message between these peers can be",
        "Your message is larger than the largest group that you share with the recipient; compare the two federation"
        " files.",
    ),
    RejectionCode(
        "body_truncated",
        ("T06",),
        "h",
        "the body ended early",
        "The connection was cut during your message, which is accepted when it is repeated.",
    ),
    RejectionCode(
        "body_too_slow",
        ("T07",),
        "s",
        "the body arrived more slowly than the minimum rate",
        "Your message arrived too slowly to keep a buffer for it; send less over this link (`gossip.wire: int8`).",
    ),
    RejectionCode(
        "too_many_requests",
        ("T08",),
        "h",
        "more requests or connections than allowed",
        "Slow down: the recipient accepts a bounded number of messages at once and per second; repeat this one later.",
    ),
    RejectionCode(
        "unknown_route",
        ("T09", "T10"),
        "s",
        "an unsupported path, method, content type or encoding",
        "Peers send POST requests to /v1/message, with Content-Type application/octet-stream and no Content-Encoding"
        " or Expect header; pages for people are at the dashboard's address.",
    ),
    # ------------------------------------------------------------------------------------------------------ envelope
    RejectionCode("not_fedpeer", ("E01",), "s", "the first bytes are not those of a fedpeer message", _BROKEN),
    RejectionCode(
        "version_unsupported",
        ("E02",),
        "h",
        "a wire version that this release does not support",
        "The two peers speak different versions of the wire protocol; update the older one to the newer release.",
    ),
    RejectionCode("header_truncated", ("E03",), "s", "the message is shorter than its header says", _BROKEN),
    RejectionCode("metadata_too_large", ("E04",), "s", "more metadata is declared than a message may have", _BROKEN),
    RejectionCode(
        "tail_length_wrong",
        ("E05",),
        "s",
        "the tail has another length than its message or its group requires",
        "The tensor in your message is longer or shorter than the message says; both peers must have the same "
        "partial models: compare the two federation files.",
    ),
    RejectionCode("trailing_bytes", ("E06",), "s", "bytes after the end of the message", _BROKEN),
    RejectionCode(
        "bad_signature",
        ("E07",),
        "x",
        "a statement whose signature is not its author's",
        "A statement that you passed on is not signed by its author; your peer should have rejected it itself.",
    ),
    RejectionCode(
        "wrong_recipient",
        ("E08",),
        "s",
        "meant for another peer",
        "Your message names another recipient: check that the address in the roster belongs to the peer that you "
        "want to reach.",
    ),
    RejectionCode(
        "wrong_federation",
        ("E09",),
        "h",
        "from another federation",
        "The two peers do not belong to the same federation; use this federation's files and start again.",
    ),
    RejectionCode(
        "repeated",
        ("E10",),
        "h",
        "a transfer that was accepted before; it is acknowledged again",
        "This transfer was accepted before; nothing needs to be done.",
    ),
    RejectionCode(
        "sequence_jump",
        ("E11",),
        "s",
        "a sequence number beyond the window",
        "Transfers are numbered consecutively and at most two are in flight; a new handshake compares the channels.",
    ),
    RejectionCode(
        "stale_incarnation",
        ("E12", "R02"),
        "h",
        "from or to an incarnation that has ended",
        "One of the two peers lost its memory and returned as a new incarnation; a new handshake settles this.",
    ),
    RejectionCode(
        "incarnation_jump",
        ("E13",),
        "s",
        "an incarnation that is too far ahead",
        "Your incarnation is further ahead than losing memory explains; start again from your newest snapshot.",
    ),
    RejectionCode(
        "own_message",
        ("E14",),
        "s",
        "our own message, sent back to us",
        "You sent the recipient's own message back to it; check that there is no proxy between the two peers.",
    ),
    RejectionCode(
        "duplicate_peer",
        ("E15",),
        "o",
        "two running processes with one identity; the later one continues",
        "This peer was started a second time: the later process continues, this one stops. Keep only one of the two.",
    ),
    RejectionCode(
        "unproven",
        ("E17",),
        "h",
        "a claim about this peer that only its own signature could prove",
        "You report a later generation, incarnation or transfer of the recipient than it remembers; it believes that"
        " only with its own signature.",
    ),
    RejectionCode(
        "foreign_roster",
        ("E16",),
        "s",
        "a roster that another authority signed",
        "The roster that you passed on is another authority's; your peer should have rejected it itself.",
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
        "this peer's program failed on the message; nothing of it was applied",
        "The recipient's program failed on your message and applied nothing of it; look at its log, and report the "
        "bug.",
    ),
    # ------------------------------------------------------------------------------------------------ groups, numbers
    RejectionCode(
        "unknown_group",
        ("S01",),
        "s",
        "an averaging group that is unknown here",
        "The recipient does not know this averaging group; compare the partial models in the two federation files.",
    ),
    RejectionCode(
        "group_not_shared",
        ("S02",),
        "s",
        "an averaging group that the two peers do not share",
        "The two peers do not both implement the partial models of this group; compare `members` in the two "
        "federation files.",
    ),
    RejectionCode(
        "plan_mismatch",
        ("S03",),
        "h",
        "splits the group in another way",
        "The networks or partial models of the two peers differ, so this group is not averaged between them; the log"
        " names the first difference.",
    ),
    RejectionCode(
        "wrong_shape",
        ("S04",),
        "s",
        "a tensor of another shape than the group's",
        "A group is sent as one vector of the group's length; compare the two federation files.",
    ),
    RejectionCode(
        "wrong_dtype",
        ("S05",),
        "s",
        "a wire encoding that this group does not use",
        "Use the encoding that `gossip.wire` of the federation file names; all of them are little-endian.",
    ),
    RejectionCode(
        "not_finite",
        ("S06",),
        "s",
        "values that contain NaN or infinity",
        "Your values contain NaN or infinity: your training has diverged; lower its learning rate.",
    ),
    RejectionCode(
        "bad_weight",
        ("S07", "S15"),
        "s",
        "a push-sum weight that no peer can have",
        "A push-sum weight is finite, above 0 and at most the sum of all members' weights; what you sent less what "
        "you received is at most what the others put in. Compare `learning.weights`.",
    ),
    RejectionCode(
        "no_room",
        ("S16",),
        "h",
        "more weight than this peer may hold",
        "The recipient holds as much weight as one peer may, and passes it on; repeat this share later.",
    ),
    RejectionCode(
        "sequence_reused",
        ("S08",),
        "h",
        "other bytes under a number that was accepted before; the channel is reopened",
        "One of the two peers lost its memory: the channel is reopened and the difference is written off.",
    ),
    RejectionCode(
        "early",
        ("S14",),
        "h",
        "a sequence number beyond the next one",
        "The transfer before this one is still in flight; repeat both.",
    ),
    RejectionCode(
        "implausible",
        ("S09",),
        "s",
        "finite values, but absurdly far from our estimate",
        "Your value is further away than any training can explain; look for diverged training or data that is not "
        "normalised.",
    ),
    RejectionCode(
        "out_of_reach",
        ("S17",),
        "h",
        "values further from our estimate, or longer as a vector, than our own training explains",
        "Your value is further from the recipient's than a hundred times its own training; look for diverged "
        "training, yours or that of a peer that sent to you.",
    ),
    RejectionCode(
        "stale_epoch",
        ("S10",),
        "h",
        "for an averaging that is over",
        "This averaging is over; continue with the next one.",
    ),
    RejectionCode(
        "epoch_too_early",
        ("S11",),
        "s",
        "for an averaging that is not due yet",
        "You are further ahead than the federation's rules allow; wait for the others.",
    ),
    RejectionCode(
        "not_a_neighbour",
        ("S12",),
        "h",
        "from a peer that is not a neighbor in this group",
        "You are not a neighbor of the recipient in this group; the two peers see different peers alive, which "
        "settles by itself.",
    ),
    # ---------------------------------------------------------------------------------------------------- membership
    RejectionCode(
        "refuted",
        ("R01",),
        "h",
        "a claim that this peer is suspect or dead; answered by a newer statement",
        "The recipient is alive: take its newer statement.",
    ),
    RejectionCode(
        "false_accuser",
        ("R18",),
        "h",
        "a verdict by a member whose verdicts were often refuted lately",
        "The author of this verdict has too often called living peers suspect or dead: look at its network. Its "
        "verdicts count again after a while.",
    ),
    # ------------------------------------------------------------------------------------------- coordinated rounds
    RejectionCode(
        "double_vote",
        ("R04",),
        "s",
        "votes for two candidates in one term",
        "You voted for two candidates in one term: look for a second machine with your identity, or for a disk that "
        "was restored to an earlier state.",
    ),
    RejectionCode(
        "two_coordinators",
        ("R05",),
        "x",
        "coordinates in a term that belongs to another peer",
        "Another peer coordinates in this term, so some peer voted twice: neither of the two is followed, and the "
        "next term decides.",
    ),
    RejectionCode(
        "stale_term",
        ("R06",),
        "h",
        "from a term that is over",
        "There is a later term: step down, and follow its coordinator.",
    ),
    RejectionCode(
        "term_jump",
        ("R07",),
        "s",
        "a term that is too far ahead",
        "Your term is further ahead than elections explain; start again from your newest snapshot.",
    ),
    RejectionCode(
        "too_many_terms",
        ("R19",),
        "h",
        "a candidate in one term after the other while no round is committed",
        "You were a candidate again and again while no round was committed; your vote request raises no term until "
        "others have had their turn.",
    ),
    RejectionCode(
        "stale_roster",
        ("R20",),
        "h",
        "by the majority of an earlier roster that counts no longer",
        "Since the roster that you go by, a committed round has named a later one: take its certificate from the "
        "recipient, and continue under that roster.",
    ),
    RejectionCode(
        "already_applied",
        ("R08",),
        "h",
        "a proposal for a round that is already applied",
        "This round is already applied: take its certificate from the recipient, and continue from there.",
    ),
    RejectionCode(
        "round_gap",
        ("R09",),
        "h",
        "for a round or a roster that this peer has not reached",
        "The recipient is behind you: send it the newest roster, certificate and model.",
    ),
    RejectionCode(
        "digest_mismatch",
        ("R10",),
        "s",
        "another model than the accepted one, or bytes that do not match their digest",
        "Your digest does not match the bytes that you sent, or the model that was accepted for this round.",
    ),
    RejectionCode(
        "round_closed",
        ("R11",),
        "h",
        "an update for a round that is over",
        "This round ended without your update; continue with the next one. If that happens often, raise "
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
        "an impossible number of examples",
        "The number of examples in your update is not a whole number that a machine can hold; check your training "
        "data.",
    ),
    RejectionCode(
        "bad_precision",
        ("R14",),
        "s",
        "a variance or precision that is not above 0",
        "The variances and precisions in your update have to be finite and above 0: your training has diverged; "
        "lower its learning rate.",
    ),
    RejectionCode(
        "bad_task_matrix",
        ("R15",),
        "s",
        "relations of tasks that are not symmetric or not positive semi-definite",
        "The model that you passed on contains impossible relations between tasks; look for a Byzantine coordinator,"
        " or another version of fedpeer.",
    ),
    RejectionCode(
        "too_far",
        ("R16",),
        "h",
        "an update that moved much further than the others of its round",
        "Your update moved further than `learning.farthest` times the median one of its round, and is left out of "
        "it; look for diverged training, or raise `learning.farthest`.",
    ),
    RejectionCode(
        "wrong_client",
        ("R17",),
        "s",
        "an update in another client's name",
        "Your update names another client as its author. Run one version of fedpeer on all machines, with the same "
        "roster.",
    ),
    # -------------------------------------------------------------------------------------------- our own machine's
    RejectionCode(
        "snapshot_corrupt",
        ("D01",),
        "o",
        "the newest snapshot cannot be read; the one before is used",
        "The newest snapshot on this disk is damaged; the peer continues from the one before. Check the disk.",
    ),
    RejectionCode(
        "journal_corrupt",
        ("D01",),
        "o",
        "an entry of the journal cannot be read; everything after it is lost",
        "The journal on this disk is damaged; the peer continues from the last intact entry. Check the disk.",
    ),
    RejectionCode(
        "persist_failed",
        ("D03", "D06"),
        "o",
        "the state could not be saved; nothing is sent until a save succeeds",
        "This peer cannot save its state and therefore sends nothing; free space on its disk or make it writable.",
    ),
    RejectionCode(
        "not_listening",
        ("D04",),
        "o",
        "this machine does not have the address to listen on",
        "This peer waits for the address of its `listen`, or of its dashboard: bring up the interface, or change the"
        " setting.",
    ),
    RejectionCode(
        "out_of_handles",
        ("D04",),
        "o",
        "no file handles are left",
        "This process cannot open more files or connections; raise its limit (ulimit -n).",
    ),
)

#: All codes, in the order of the table of bad inputs.
REJECTIONS = {row.code: row for row in _ROWS}
