-- Post bodies, read from files, one after the other, as fast as answers come; print what was measured as one line of JSON.
-- Each request has an id and a trace of its own in its head, as real callers' requests have.
-- wrk ... -s row.lua URL -- BODY_FILE ... "Header: value" ...

local LARGE_BYTES = 65536
local HEADS = 16  -- of each large body

local function word()
   return math.random(0, 0xffffffff)
end

local function formatted(start, body)
   return string.format(
      "%sx-request-id: %08x%08x%08x%08x\r\ntraceparent: 00-%08x%08x%08x%08x-%08x%08x-01\r\nContent-Length: %d\r\n\r\n%s",
      start, word(), word(), word(), word(), word(), word(), word(), word(), word(), word(), #body, body)
end

function init(args)
   math.randomseed(os.time())
   local bodies, lines = {}, {string.format("POST %s HTTP/1.1\r\nHost: %s\r\n", wrk.path, wrk.headers["Host"])}
   for _, argument in ipairs(args) do
      if argument:match("^([^:/]+): (.*)$") then
         lines[#lines + 1] = argument .. "\r\n"
      else
         local file = assert(io.open(argument, "rb"))
         bodies[#bodies + 1] = file:read("*a")
         file:close()
      end
   end
   local start = table.concat(lines)
   -- Large ones are formatted before: 600 KB would otherwise be copied together for each request.
   local ready = {}
   for i = 1, #bodies[1] > LARGE_BYTES and HEADS * #bodies or 0 do
      ready[i] = formatted(start, bodies[(i - 1) % #bodies + 1])
   end
   local sent = 0
   request = function()
      sent = sent + 1
      return ready[(sent - 1) % math.max(#ready, 1) + 1] or formatted(start, bodies[(sent - 1) % #bodies + 1])
   end
end

function done(summary, latency, requests)
   local e = summary.errors
   io.write(string.format(
      '{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "failures": %d}\n',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      e.connect + e.read + e.write + e.status + e.timeout))
end
