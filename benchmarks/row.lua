-- Post bodies, read from files, one after the other, as fast as answers come; print what was measured as one line of JSON.
-- wrk ... -s row.lua URL -- BODY_FILE ... "Header: value" ...

function init(args)
   wrk.method = "POST"
   local bodies = {}
   for _, argument in ipairs(args) do
      local name, value = argument:match("^([^:]+): (.*)$")
      if name then
         wrk.headers[name] = value
      else
         local file = assert(io.open(argument, "rb"))
         bodies[#bodies + 1] = file:read("*a")
         file:close()
      end
   end
   -- Formatted once: 600 KB would otherwise be copied together for each request.
   local requests = {}
   for i, body in ipairs(bodies) do
      requests[i] = wrk.format(nil, nil, nil, body)
   end
   local sent = 0
   request = function()
      sent = sent + 1
      return requests[(sent - 1) % #requests + 1]
   end
end

function done(summary, latency, requests)
   local e = summary.errors
   io.write(string.format(
      '{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "failures": %d}\n',
      summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
      e.connect + e.read + e.write + e.status + e.timeout))
end
