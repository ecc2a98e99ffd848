-- quota: adds what a replica let a tenant use to what all have, and says what the tenant owes. The reference is
-- extproc/quota.py. It refuses nothing: the replica has decided already, and decides the next ones by the answer.
--
-- KEYS[1]  hash    when the tenant's quota is whole again   {prefix:q:tenant}:4:whole      tokens_at, requests_at, seconds
-- KEYS[2]  string  number of this replica's last call       {prefix:q:tenant}:4:told:replica
-- ARGV[1]  now, seconds; empty: this server's TIME
-- ARGV[2]  number of this call: one that is not above the last is not counted again
-- ARGV[3]  tokens used, as the seconds in which the quota refills them; negative: given back
-- ARGV[4]  requests used, likewise
-- Returns  a msgpack array of accepted 0|1, tokens owed, requests owed: seconds until they have refilled
--
-- Both keys go by themselves: the first when nothing is owed, the second when no call can be under way any more.

local TOLD_TTL = 60
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local number, last = tonumber(ARGV[2]), tonumber(redis.call('GET', KEYS[2]) or 0)
local whole = redis.call('HMGET', KEYS[1], 'tokens_at', 'requests_at')
local tokens_at = math.max(tonumber(whole[1] or 0), now)
local requests_at = math.max(tonumber(whole[2] or 0), now)
local accepted = 0
if number > last then
  accepted = 1
  tokens_at = tokens_at + tonumber(ARGV[3])
  requests_at = requests_at + tonumber(ARGV[4])
  redis.call('SET', KEYS[2], ARGV[2], 'EX', TOLD_TTL)
  local owed = math.max(tokens_at, requests_at) - now
  if owed > 0 then
    redis.call('HSET', KEYS[1], 'tokens_at', string.format('%.17g', tokens_at), 'requests_at',
      string.format('%.17g', requests_at))
    redis.call('EXPIRE', KEYS[1], math.ceil(owed) + 1)
  else
    redis.call('DEL', KEYS[1])
  end
end
return cmsgpack.pack({accepted, math.max(0, tokens_at - now), math.max(0, requests_at - now)})
