-- publish: takes or renews a pool's lead and, in the same step, puts the leader's state in force. Two never write at once.
--
-- KEYS[1]  hash  the pool's facts        {prefix:pool}:4:pool        generation, state, fingerprint, lead
-- KEYS[2]  hash  replica -> counters     {prefix:pool}:4:demand
-- ARGV[1]  now, seconds; empty: this server's TIME
-- ARGV[2]  owner, unique to a start of its process
-- ARGV[3]  token that the owner got when it took the lead; 0: none
-- ARGV[4]  seconds that the lead lasts
-- ARGV[5]  state, msgpack array that begins with limits P0, P1, P2 and reserved P0, P1, P2, each tokens and slots; empty:
--          keep what is in force
-- ARGV[6]  fingerprint of that state
-- ARGV[7]  channel of this pool's wakes
-- ARGV[8]  1: the state differs from the last in more than its age, so the waiters are to be woken
-- Returns  two strings: a msgpack array of led 0|1, token, lead_s (what is left of the lead, whosever it is), now, then the
--          counters as replica, at, counters; and the state that was in force, when the lead was taken, else empty
-- The lead is a msgpack array: owner, token, until. Tokens only rise, also over a loss of all keys: they are microseconds.

local TTL = 120
local pack, unpack_ = cmsgpack.pack, cmsgpack.unpack
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local owner, token = ARGV[2], tonumber(ARGV[3])
local held = redis.call('HGET', KEYS[1], 'lead')
local lead = held and unpack_(held) or {'', 0, 0}
local taken = ''
if lead[1] ~= owner or lead[2] ~= token then
  if lead[3] > now then return {pack({0, 0, lead[3] - now, now}), ''} end
  taken = redis.call('HGET', KEYS[1], 'state') or ''
  token = math.max(lead[2] + 1, math.floor(now * 1000000))
end
local lasts = tonumber(ARGV[4])
redis.call('HSET', KEYS[1], 'lead', pack({owner, token, now + lasts}))
if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'state', ARGV[5], 'fingerprint', ARGV[6])
end
redis.call('EXPIRE', KEYS[1], TTL)
if ARGV[8] == '1' then redis.call('PUBLISH', ARGV[7], '*') end
local answer = {1, token, lasts, now}
local demand = redis.call('HGETALL', KEYS[2])
for i = 1, #demand, 2 do
  local counters = unpack_(demand[i + 1])
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = demand[i], counters[1], counters[2]
end
return {pack(answer), taken}
