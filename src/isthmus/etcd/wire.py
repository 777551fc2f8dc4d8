"""The messages of etcd's API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from isthmus.protos import messages

FIELDS: Final = """
KeyValue            1 key bytes, 2 create_revision int64, 3 mod_revision int64, 4 version int64, 5 value bytes, 6 lease int64
Event               1 type int32, 2 kv KeyValue, 3 prev_kv KeyValue
Header              1 cluster_id uint64, 2 member_id uint64, 3 revision int64, 4 raft_term uint64
RangeRequest        1 key bytes, 2 range_end bytes, 3 limit int64, 4 revision int64, 8 keys_only bool, 9 count_only bool
RangeResponse       1 header Header, 2 kvs *KeyValue, 3 more bool, 4 count int64
PutRequest          1 key bytes, 2 value bytes, 3 lease int64, 4 prev_kv bool
PutResponse         1 header Header, 2 prev_kv KeyValue
DeleteRangeRequest  1 key bytes, 2 range_end bytes, 3 prev_kv bool
DeleteRangeResponse 1 header Header, 2 deleted int64, 3 prev_kvs *KeyValue
RequestOp           1 range RangeRequest, 2 put PutRequest, 3 delete_range DeleteRangeRequest
ResponseOp          1 range RangeResponse, 2 put PutResponse, 3 delete_range DeleteRangeResponse
Compare             1 result int32, 2 target int32, 3 key bytes, 4 version int64, 5 create_revision int64, 6 mod_revision int64, 7 value bytes, 8 lease int64
TxnRequest          1 compare *Compare, 2 success *RequestOp, 3 failure *RequestOp
TxnResponse         1 header Header, 2 succeeded bool, 3 responses *ResponseOp
CompactRequest      1 revision int64, 2 physical bool
CompactResponse     1 header Header
WatchCreate         1 key bytes, 2 range_end bytes, 3 start_revision int64, 4 progress_notify bool, 6 prev_kv bool, 8 fragment bool
WatchProgress       1 unused bool
WatchRequest        1 create WatchCreate, 3 progress WatchProgress
WatchResponse       1 header Header, 2 watch_id int64, 3 created bool, 4 canceled bool, 5 compact_revision int64, 6 cancel_reason string, 7 fragment bool, 11 events *Event
LeaseGrantRequest   1 ttl int64, 2 id int64
LeaseGrantResponse  1 header Header, 2 id int64, 3 ttl int64, 4 error string
LeaseRevokeRequest  1 id int64
LeaseRevokeResponse 1 header Header
KeepAliveRequest    1 id int64
KeepAliveResponse   1 header Header, 2 id int64, 3 ttl int64
AuthRequest         1 name string, 2 password string
AuthResponse        1 header Header, 2 token string
Nothing             1 unused bool
Named               1 name string
Names               1 header Header, 2 names *string
UserPassword        1 name string, 2 password string
UserRole            1 user string, 2 role string
Permission          1 right int32, 2 key bytes, 3 range_end bytes
RolePermission      1 name string, 2 permission Permission
RoleRange           1 role string, 2 key bytes, 3 range_end bytes
RolePermissions     1 header Header, 2 permissions *Permission
HeaderOnly          1 header Header
StatusRequest       1 unused bool
StatusResponse      1 header Header, 2 version string, 3 db_size int64, 4 leader uint64, 8 errors *string, 9 db_size_in_use int64, 12 quota int64
AlarmRequest        1 action int32, 2 member_id uint64, 3 alarm int32
"""  # noqa: E501 a table reads better in whole lines

message: Final = messages("isthmus.etcd", FIELDS)
"""The class of a message of the table, by its name."""

KeyValue: Final = message("KeyValue")
RangeRequest: Final = message("RangeRequest")
PutRequest: Final = message("PutRequest")
DeleteRangeRequest: Final = message("DeleteRangeRequest")
RequestOp: Final = message("RequestOp")
Compare: Final = message("Compare")
TxnRequest: Final = message("TxnRequest")
CompactRequest: Final = message("CompactRequest")
WatchCreate: Final = message("WatchCreate")
WatchProgress: Final = message("WatchProgress")
WatchRequest: Final = message("WatchRequest")
LeaseGrantRequest: Final = message("LeaseGrantRequest")
LeaseRevokeRequest: Final = message("LeaseRevokeRequest")
KeepAliveRequest: Final = message("KeepAliveRequest")
AuthRequest: Final = message("AuthRequest")
StatusRequest: Final = message("StatusRequest")
AlarmRequest: Final = message("AlarmRequest")
Nothing: Final = message("Nothing")
Named: Final = message("Named")
UserPassword: Final = message("UserPassword")
UserRole: Final = message("UserRole")
Permission: Final = message("Permission")
RolePermission: Final = message("RolePermission")
RoleRange: Final = message("RoleRange")

DELETE_EVENT: Final = 1


class Method(NamedTuple):
    """A remote procedure: its path and the codecs of its messages."""

    path: str
    style: Literal["unary_unary", "stream_stream"]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def on(self, channel: Any) -> Any:
        """The callable of this procedure on a channel."""
        make = getattr(channel, self.style)
        return make(self.path, request_serializer=self.encode, response_deserializer=self.decode)


def _unary(path: str, request: str, response: str) -> Method:
    codecs = message(request).SerializeToString, message(response).FromString
    return Method(f"/etcdserverpb.{path}", "unary_unary", *codecs)


def _stream(path: str, request: str, response: str) -> Method:
    return _unary(path, request, response)._replace(style="stream_stream")


RANGE: Final = _unary("KV/Range", "RangeRequest", "RangeResponse")
PUT: Final = _unary("KV/Put", "PutRequest", "PutResponse")
DELETE_RANGE: Final = _unary("KV/DeleteRange", "DeleteRangeRequest", "DeleteRangeResponse")
TXN: Final = _unary("KV/Txn", "TxnRequest", "TxnResponse")
COMPACT: Final = _unary("KV/Compact", "CompactRequest", "CompactResponse")
WATCH: Final = _stream("Watch/Watch", "WatchRequest", "WatchResponse")
LEASE_GRANT: Final = _unary("Lease/LeaseGrant", "LeaseGrantRequest", "LeaseGrantResponse")
LEASE_REVOKE: Final = _unary("Lease/LeaseRevoke", "LeaseRevokeRequest", "LeaseRevokeResponse")
LEASE_KEEP_ALIVE: Final = _stream("Lease/LeaseKeepAlive", "KeepAliveRequest", "KeepAliveResponse")
AUTHENTICATE: Final = _unary("Auth/Authenticate", "AuthRequest", "AuthResponse")
AUTH_ENABLE: Final = _unary("Auth/AuthEnable", "Nothing", "HeaderOnly")
USER_LIST: Final = _unary("Auth/UserList", "Nothing", "Names")
USER_ADD: Final = _unary("Auth/UserAdd", "UserPassword", "HeaderOnly")
USER_DELETE: Final = _unary("Auth/UserDelete", "Named", "HeaderOnly")
USER_PASSWORD: Final = _unary("Auth/UserChangePassword", "UserPassword", "HeaderOnly")
USER_GRANT: Final = _unary("Auth/UserGrantRole", "UserRole", "HeaderOnly")
ROLE_LIST: Final = _unary("Auth/RoleList", "Nothing", "Names")
ROLE_ADD: Final = _unary("Auth/RoleAdd", "Named", "HeaderOnly")
ROLE_DELETE: Final = _unary("Auth/RoleDelete", "Named", "HeaderOnly")
ROLE_GET: Final = _unary("Auth/RoleGet", "Named", "RolePermissions")
ROLE_GRANT: Final = _unary("Auth/RoleGrantPermission", "RolePermission", "HeaderOnly")
ROLE_REVOKE: Final = _unary("Auth/RoleRevokePermission", "RoleRange", "HeaderOnly")
ALARM: Final = _unary("Maintenance/Alarm", "AlarmRequest", "HeaderOnly")
DEFRAGMENT: Final = _unary("Maintenance/Defragment", "Nothing", "HeaderOnly")
DISARM: Final = 2
"""Action of an AlarmRequest."""
NOSPACE: Final = 1
"""Alarm of a database that has reached its quota."""
STATUS: Final = _unary("Maintenance/Status", "StatusRequest", "StatusResponse")
