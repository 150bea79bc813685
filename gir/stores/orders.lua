-- Replace the operators' orders if nobody was faster. KEYS: orders (hash). ARGV: version expected, new version, text.
-- Answer: 1 when it was done, 0 when another version is held.
local held = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if held ~= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'text', ARGV[3])
return 1
